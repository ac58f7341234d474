package node

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/csi-addons/node-healer/internal/worker"
	"github.com/csi-addons/node-healer/pkg/facts"
)

// hang mounts a FUSE filesystem whose daemon reads every request and answers none:
// a process that waits for one cannot be killed until end is called.
func hang(t *testing.T, path string) (end func()) {
	t.Helper()
	return fuseVolume(t, path, func() bool { return false })
}

// fuseVolume mounts a FUSE filesystem whose daemon answers each request for which answers
// is true with EIO, and no other.
func fuseVolume(t *testing.T, path string, answers func() bool) (end func()) {
	t.Helper()
	realKernel(t)
	device, err := unix.Open("/dev/fuse", unix.O_RDWR|unix.O_CLOEXEC, 0)
	done(t, err)
	done(t, os.Mkdir(path, 0o700))
	done(t, unix.Mount("test", path, "fuse", 0, fmt.Sprintf("fd=%d,rootmode=40000,user_id=0,group_id=0", device)))
	connection := fmt.Sprintf("%s/%d", fusectl.root, topDev(t, path).FUSEConnection())
	served := make(chan struct{})
	go func() {
		defer close(served)
		buf := make([]byte, 1<<17)
		for {
			n, err := unix.Read(device, buf)
			if err != nil && !errors.Is(err, unix.EINTR) && !errors.Is(err, unix.ENOENT) {
				return
			}
			const initialise = 26 // FUSE_INIT (include/uapi/linux/fuse.h)
			reply := make([]byte, 16, 16+64)
			switch {
			case n < 40:
				continue
			case binary.LittleEndian.Uint32(buf[4:]) == initialise:
				reply = reply[:cap(reply)]
				binary.LittleEndian.PutUint32(reply[16:], 7)
				binary.LittleEndian.PutUint32(reply[20:], 31)
			case answers():
				eio := -int32(unix.EIO)
				binary.LittleEndian.PutUint32(reply[4:], uint32(eio))
			default:
				continue
			}
			binary.LittleEndian.PutUint32(reply[0:], uint32(len(reply)))
			copy(reply[8:], buf[8:16]) // unique
			_, _ = unix.Write(device, reply)
		}
	}()
	end = sync.OnceFunc(func() {
		const fusectl = "/sys/fs/fuse/connections"
		if _, err := os.Stat(connection); err != nil {
			done(t, unix.Mount("fusectl", fusectl, "fusectl", 0, ""))
			defer func() { done(t, unix.Unmount(fusectl, unix.MNT_DETACH)) }()
		}
		done(t, os.WriteFile(connection+"/abort", []byte("1"), 0o600))
		<-served                    // it would read from whatever has the number of the descriptor next
		done(t, unix.Close(device)) // before the number of the connection is another mount's
		done(t, unix.Unmount(path, unix.MNT_DETACH))
	})
	t.Cleanup(end)
	return end
}

func topDev(t *testing.T, path string) facts.Dev {
	t.Helper()
	n := openOwn(t)
	table, err := n.Mounts()
	done(t, err)
	stack := table.Stack(path)
	if len(stack) == 0 {
		t.Fatalf("nothing is mounted at %s", path)
	}
	return stack[0].Dev
}

// Queries for ever new paths in a volume that hangs leave one worker there, and delay
// no path elsewhere.
func TestPathsInAHungVolume(t *testing.T) {
	n, root := impatient(t)
	end := hang(t, root+"/hung")
	for range 2 {
		var callers sync.WaitGroup
		for i := range 6 {
			callers.Go(func() {
				err := worker.ErrNoWorker // a busy machine may start one too late
				for errors.Is(err, worker.ErrNoWorker) {
					_, err = n.Inspect(context.Background(), InspectQuery{Paths: []PathQuery{{Path: fmt.Sprintf("%s/hung/%d/file", root, i)}}})
				}
				if !errors.Is(err, worker.ErrStuck) {
					t.Errorf("got %v", err)
				}
			})
		}
		callers.Wait()
		inspectPath(t, n, root+"/other")
		if s := n.cfg.Pool.Stats(); s.Abandoned != 1 {
			t.Fatalf("%+v", s)
		}
	}
	if s := seen(t, n, topAt(t, n, root+"/hung")); !s.Answer.TimedOut || !s.Answer.Stuck || s.Answer.Outstanding.IsZero() || len(s.Answer.Waits) == 0 {
		t.Errorf("the volume itself: %+v", s.Answer)
	}
	if s := n.cfg.Pool.Stats(); s.Abandoned != 1 {
		t.Errorf("%+v", s)
	}
	end()
	eventually(t, "the worker ends", func() bool { return n.cfg.Pool.Stats().Abandoned == 0 })
	inspectPath(t, n, root+"/hung/0")
	if len(n.probes.calls) > 1 {
		t.Errorf("%d storages are held", len(n.probes.calls))
	}
}

// Many calls read the node's own disk at once. When it hangs, it gets no more
// workers than were at it then.
func TestDiskThatHangs(t *testing.T) {
	n, root := newNode(t)
	table, err := n.Topology()
	done(t, err)
	disk := storageUnder(table, root)
	disk.root = "paths"
	stuck, asked := make(stuckWorker), 0
	ask := func() error { asked++; return stuck }
	if err := n.probes.unlessStuck(disk, ask); !errors.As(err, new(stuckWorker)) {
		t.Errorf("got %v", err)
	}
	if err := n.probes.unlessStuck(disk, ask); !errors.Is(err, worker.ErrStuck) || errors.As(err, new(stuckWorker)) || asked != 1 {
		t.Errorf("a second one: %v, asked %d times", err, asked)
	}
	if _, err := n.Inspect(context.Background(), InspectQuery{Paths: []PathQuery{{Path: root + "/m"}}}); !errors.Is(err, worker.ErrStuck) {
		t.Errorf("inspect: %v", err)
	}
	if s := n.cfg.Pool.Stats(); s.Started != 0 {
		t.Errorf("%+v", s)
	}
	close(stuck)
	inspectPath(t, n, root+"/m")
}

func TestSerialize(t *testing.T) {
	p := newProbes()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Millisecond)
	defer cancel()
	stuck := make(stuckWorker)
	err := p.serialize(ctx, containerWalk, func() error {
		if err := p.serialize(ctx, fusectl, func() error { return nil }); err != nil {
			t.Errorf("at another storage: %v", err)
		}
		if err := p.serialize(ctx, containerWalk, nil); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("at the same one: %v", err)
		}
		return fmt.Errorf("inspect: %w", stuck)
	})
	if !errors.As(err, new(stuckWorker)) {
		t.Errorf("got %v", err)
	}
	for range 2 {
		if err := p.serialize(context.Background(), containerWalk, nil); !errors.Is(err, worker.ErrStuck) || errors.As(err, new(stuckWorker)) {
			t.Errorf("next to a worker that cannot be ended: %v", err)
		}
	}
	close(stuck)
	if err := p.serialize(context.Background(), containerWalk, func() error { return nil }); err != nil || len(p.calls) != 0 {
		t.Errorf("after it: %v, %d are held", err, len(p.calls))
	}
}

// A walk that cannot be ended gets no second one.
func TestNoWalkBesideOneThatCannotBeEnded(t *testing.T) {
	realKernel(t)
	n, _ := newNode(t)
	stuck := make(stuckWorker)
	if err := n.probes.serialize(context.Background(), containerWalk, func() error { return stuck }); err == nil {
		t.Fatal("no error")
	}
	if _, err := n.InContainers(context.Background(), nil, ofVolume, false); !errors.Is(err, worker.ErrStuck) {
		t.Errorf("got %v", err)
	}
	if s := n.cfg.Pool.Stats(); s.Started != 0 {
		t.Errorf("%+v", s)
	}
	close(stuck)
	if _, err := n.InContainers(context.Background(), nil, ofVolume, false); err != nil {
		t.Error(err)
	}
}

// Files that a tenant's process has open do not keep anybody from finding containers.
func TestContainersAreFoundBesideAWalkOverOpenFiles(t *testing.T) {
	realKernel(t)
	n, _ := newNode(t)
	done(t, n.probes.serialize(t.Context(), daemonWalk, func() error {
		_, err := n.InContainers(t.Context(), nil, ofVolume, false)
		return err
	}))
}
