package integration

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/csi-addons/node-healer/test/harness"
)

// TestNeverBare replaces a mount many times, while a process stats its path
// all the time: the directory beneath is never seen. Nothing accumulates in the
// server meanwhile.
func TestNeverBare(t *testing.T) {
	n := harness.NewNode(t, "--standalone").Start()
	s := newServed(n, "watched")
	markBare(s)
	s.known()
	s.die()
	n.Expect("healed", s.Request()) // so that everything was once needed
	w := watch(t, s.MountPoint())
	keepsNothing(n, 10, func() {
		s.die()
		n.Expect("healed", s.Request())
		s.back()
	})
	seen := w.stop()
	if len(seen.wrong) > 0 {
		t.Errorf("the path showed %v", seen.wrong)
	}
	if !seen.dead || !seen.alive {
		t.Errorf("%d looks saw it dead %v, alive %v: the test shows nothing", seen.looks, seen.dead, seen.alive)
	}
	t.Logf("%d looks", seen.looks)
}

// bareMarker is a file in the directory beneath a volume.
const bareMarker = "beneath-the-volume"

// markBare puts a file into the bare directory of a volume's mount point.
func markBare(s *served) {
	t := s.Node.T
	t.Helper()
	below := filepath.Join(s.Node.Dir, "below")
	harness.Mkdir(t, below)
	harness.Must(t, unix.Mount(s.Node.Kubelet, below, "", unix.MS_BIND, ""))
	harness.Must(t, unix.Mount("", below, "", unix.MS_PRIVATE, ""))
	rel, err := filepath.Rel(s.Node.Kubelet, s.MountPoint())
	harness.Must(t, err)
	harness.Must(t, os.WriteFile(filepath.Join(below, rel, bareMarker), nil, 0o600))
	harness.Must(t, unix.Unmount(below, 0))
}

// sight is what there was to be seen.
type sight struct {
	looks       int
	dead, alive bool
	// wrong has each answer once that must not be.
	wrong []error
}

// watcher looks at a path all the time.
type watcher struct {
	enough chan struct{}
	gone   sync.WaitGroup
	sight  sight
}

// watch watches a mount point that markBare has marked.
func watch(t *testing.T, mountPoint string) *watcher {
	t.Helper()
	w := &watcher{enough: make(chan struct{})}
	t.Cleanup(func() { w.stop() })
	w.gone.Go(func() {
		for {
			select {
			case <-w.enough:
				return
			default:
				w.sight.look(mountPoint)
			}
		}
	})
	return w
}

var errBare = errors.New("the directory beneath")

func (s *sight) look(mountPoint string) {
	s.looks++
	var st unix.Statx_t
	err := unix.Statx(unix.AT_FDCWD, filepath.Join(mountPoint, bareMarker), 0, unix.STATX_TYPE, &st)
	if err == nil {
		err = errBare
	}
	var fs unix.Statfs_t
	if statfs := unix.Statfs(mountPoint, &fs); statfs == nil && fs.Type != unix.FUSE_SUPER_MAGIC {
		err = errBare
	}
	switch {
	case errors.Is(err, unix.ENOENT):
		s.alive = true
	case errors.Is(err, unix.ENOTCONN), errors.Is(err, unix.ECONNABORTED), errors.Is(err, unix.EIO):
		s.dead = true // EIO is rare, from a look that is under way when the daemon dies
	case !slices.Contains(s.wrong, err):
		s.wrong = append(s.wrong, err)
	}
}

// stop returns what was seen.
func (w *watcher) stop() sight {
	select {
	case <-w.enough:
	default:
		close(w.enough)
	}
	w.gone.Wait()
	return w.sight
}

// holdings is what a server holds, without its idle workers.
type holdings struct{ threads, files int }

// keepsNothing calls so many times, until the server has no file more for all of these, and not a thread
// more for each. Go makes threads while system calls wait for a processor, and keeps them; a worker that
// comes or goes has other files for a moment than one that waits.
func keepsNothing(n *harness.Node, calls int, call func()) {
	n.T.Helper()
	var before, after holdings
	defer func() {
		if n.T.Failed() {
			n.T.Logf("the server held %+v, and after %d calls %+v", before, calls, after)
		}
	}()
	harness.Eventually(n.T, "calls cost no file, and less than a thread each", func() bool {
		before = held(n)
		for range calls {
			call()
		}
		after = held(n)
		return after.files <= before.files && after.threads < before.threads+calls
	})
}

func held(n *harness.Node) (now holdings) {
	n.T.Helper()
	const filesOfWorker = workersDescriptors / idleWorkers
	count := func(what string) int {
		entries, err := os.ReadDir(filepath.Join("/proc", strconv.Itoa(n.PID()), what))
		harness.Must(n.T, err)
		return len(entries)
	}
	// A worker in the place of a spent one may come when the step has ended.
	harness.Eventually(n.T, "the spent workers are gone, and no other is being started", func() bool {
		before := now
		now = holdings{threads: count("task"), files: count("fd") - filesOfWorker*len(n.Workers())}
		return len(n.Workers()) <= idleWorkers && now.files == before.files
	})
	return now
}
