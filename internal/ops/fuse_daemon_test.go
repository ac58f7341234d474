package ops

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/csi-addons/node-healer/pkg/facts"
)

// daemon serves a filesystem with an empty root directory. It counts requests,
// and once it hangs it only reads them.
type daemon struct {
	t        *testing.T
	path     string
	number   facts.Dev
	hangs    atomic.Bool
	refuse   atomic.Int32 // the errno of opening a directory
	requests atomic.Int64
	done     chan struct{}
}

func mountFUSE(t *testing.T, path string) *daemon {
	t.Helper()
	d := &daemon{t: t, path: path, done: make(chan struct{})}
	fd, err := unix.Open("/dev/fuse", unix.O_RDWR|unix.O_CLOEXEC, 0)
	must(t, err)
	must(t, unix.Mount("test-daemon", path, "fuse", unix.MS_NOSUID|unix.MS_NODEV,
		fmt.Sprintf("fd=%d,rootmode=40000,user_id=0,group_id=0", fd)))
	d.number = numberOf(t, path)
	go d.serve(fd)
	return d
}

func (d *daemon) serve(fd int) {
	defer close(d.done)
	defer unix.Close(fd)
	buf := make([]byte, 1<<17)
	for {
		n, err := unix.Read(fd, buf)
		if errors.Is(err, unix.EINTR) || errors.Is(err, unix.ENOENT) {
			continue
		}
		if err != nil {
			return
		}
		const interrupt = 36 // a waiting process is woken up by a signal, of whoever: no request of its own
		if binary.LittleEndian.Uint32(buf[4:]) != interrupt {
			d.requests.Add(1)
		}
		if reply := answerFUSE(buf[:n], d.refuse.Load()); reply != nil && !d.hangs.Load() {
			_, _ = unix.Write(fd, reply)
		}
	}
}

// end ends all waits for an answer.
func (d *daemon) end() {
	abort := fmt.Sprintf("/sys/fs/fuse/connections/%d/abort", d.number.Minor)
	if _, err := os.Stat(abort); err != nil {
		must(d.t, unix.Mount("fusectl", "/sys/fs/fuse/connections", "fusectl", 0, ""))
	}
	must(d.t, os.WriteFile(abort, []byte("1"), 0o600))
	<-d.done
	_ = unix.Unmount(d.path, unix.MNT_DETACH)
}

// answerFUSE knows what it takes to enter the root directory and to open it.
// Opcodes and layouts are those of include/uapi/linux/fuse.h.
func answerFUSE(request []byte, refuse int32) []byte {
	const getattr, forget, initialise, opendir, interrupt, batchForget = 3, 2, 26, 27, 36, 42
	var errno int32
	var body []byte
	switch binary.LittleEndian.Uint32(request[4:]) {
	case forget, batchForget, interrupt:
		return nil
	case initialise:
		body = make([]byte, 64)
		binary.LittleEndian.PutUint32(body[0:], 7)
		binary.LittleEndian.PutUint32(body[4:], 31)
		binary.LittleEndian.PutUint32(body[20:], 4096) // max_write
	case getattr:
		body = make([]byte, 16+88)
		binary.LittleEndian.PutUint64(body[16:], 1)          // inode
		binary.LittleEndian.PutUint32(body[16+60:], 0o40755) // mode
		binary.LittleEndian.PutUint32(body[16+64:], 2)       // links
	case opendir:
		if errno = refuse; errno == 0 {
			body = make([]byte, 16)
		}
	default:
		errno = int32(unix.ENOSYS)
	}
	reply := make([]byte, 16, 16+len(body))
	binary.LittleEndian.PutUint32(reply[0:], uint32(16+len(body)))
	binary.LittleEndian.PutUint32(reply[4:], uint32(-errno))
	copy(reply[8:], request[8:16])
	return append(reply, body...)
}

// The daemon gets no request from the walks over all processes, though one uses its
// mount and another waits for it.
func TestWalksBesideAHungVolume(t *testing.T) {
	needsRoot(t)
	path := filepath.Join(realDir(t), "volume")
	must(t, os.Mkdir(path, 0o700))
	d := mountFUSE(t, path)
	defer d.end()
	holder(t, 0, "cwd="+path, "open="+path)
	d.hangs.Store(true)
	before := d.requests.Load()
	holder(t, 0, "stuck="+path)
	for d.requests.Load() == before {
		time.Sleep(time.Millisecond) // until it waits
	}
	before = d.requests.Load()
	namespaces, err := readNamespaces(func(table []facts.Mount) []facts.Mount {
		return slices.DeleteFunc(table, func(m facts.Mount) bool { return m.Dev != d.number })
	})
	closeAll(namespaces)
	if err != nil || !slices.ContainsFunc(tablesOf(namespaces), func(m facts.Mount) bool { return m.Path == path }) {
		t.Errorf("mounts %+v, %v", tablesOf(namespaces), err)
	}
	if a := daemonsWalked(t, ProcessesQuery{}); a.Cut {
		t.Error("the walk over the processes is cut")
	}
	if n := d.requests.Load() - before; n != 0 {
		t.Errorf("the daemon got %d requests", n)
	}
}
