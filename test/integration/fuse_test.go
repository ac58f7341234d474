package integration

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"
)

// fuseDaemon is the smallest daemon that a FUSE mount takes for alive: it
// answers for an empty root directory, or with one errno, or not at all.
type fuseDaemon struct {
	t     *testing.T
	dev   *os.File
	errno atomic.Int32
	// mute makes it read requests and never answer.
	mute atomic.Bool
	done chan struct{}
	// connection is its directory in fusectl.
	connection string
}

// Opcodes and layouts of include/uapi/linux/fuse.h.
const (
	fuseGetattr     = 3
	fuseStatfs      = 17
	fuseInit        = 26
	fuseOpendir     = 27
	fuseForget      = 2
	fuseBatchForget = 42
	fuseInterrupt   = 36
	fuseHeaderOut   = 16
)

// mountFuse mounts a daemon's filesystem.
func mountFuse(t *testing.T, target string) *fuseDaemon {
	t.Helper()
	// Blocking and outside the poller: closing it from elsewhere must not wait.
	fd, err := unix.Open("/dev/fuse", unix.O_RDWR|unix.O_CLOEXEC, 0)
	must(t, err)
	must(t, unix.Mount("test-daemon", target, "fuse", unix.MS_NOSUID|unix.MS_NODEV,
		fmt.Sprintf("fd=%d,rootmode=40000,user_id=0,group_id=0,allow_other", fd)))
	d := &fuseDaemon{t: t, dev: os.NewFile(uintptr(fd), "fuse"), done: make(chan struct{})}
	go d.serve()
	// While it still answers: a stat of a mute one does not return.
	var st unix.Stat_t
	must(t, unix.Stat(target, &st))
	d.connection = fmt.Sprintf("/sys/fs/fuse/connections/%d", unix.Minor(st.Dev))
	if _, err := os.Stat(d.connection); err != nil {
		must(t, unix.Mount("fusectl", "/sys/fs/fuse/connections", "fusectl", 0, ""))
	}
	t.Cleanup(func() { _ = unix.Unmount(target, unix.MNT_DETACH|unix.MNT_FORCE); <-d.done })
	return d
}

// serve answers until the connection ends.
func (d *fuseDaemon) serve() {
	defer close(d.done)
	defer d.dev.Close()
	buf := make([]byte, 1<<17)
	for {
		n, err := unix.Read(int(d.dev.Fd()), buf)
		if errors.Is(err, unix.EINTR) || errors.Is(err, unix.ENOENT) {
			continue
		}
		if err != nil {
			return
		}
		if reply := d.answer(buf[:n]); reply != nil {
			_, _ = unix.Write(int(d.dev.Fd()), reply)
		}
	}
}

func (d *fuseDaemon) answer(request []byte) []byte {
	op, unique := binary.LittleEndian.Uint32(request[4:]), binary.LittleEndian.Uint64(request[8:])
	var body []byte
	switch op {
	case fuseForget, fuseBatchForget, fuseInterrupt:
		return nil
	case fuseInit:
		body = make([]byte, 64)
		binary.LittleEndian.PutUint32(body[0:], 7)
		binary.LittleEndian.PutUint32(body[4:], 31)
		binary.LittleEndian.PutUint32(body[20:], 4096) // max_write
	case fuseGetattr:
		body = make([]byte, 16+88)
		binary.LittleEndian.PutUint64(body[16:], 1)          // ino
		binary.LittleEndian.PutUint32(body[16+60:], 0o40755) // mode
		binary.LittleEndian.PutUint32(body[16+64:], 2)       // nlink
	case fuseOpendir:
		body = make([]byte, 16)
	case fuseStatfs:
		body = make([]byte, 80)
	}
	if op != fuseInit {
		if d.mute.Load() {
			return nil
		}
		if e := d.errno.Load(); e != 0 || body == nil {
			if e == 0 {
				e = int32(unix.ENOSYS)
			}
			return fuseReply(unique, e, nil)
		}
	}
	return fuseReply(unique, 0, body)
}

func fuseReply(unique uint64, errno int32, body []byte) []byte {
	reply := make([]byte, fuseHeaderOut, fuseHeaderOut+len(body))
	binary.LittleEndian.PutUint32(reply[0:], uint32(fuseHeaderOut+len(body)))
	binary.LittleEndian.PutUint32(reply[4:], uint32(-errno))
	binary.LittleEndian.PutUint64(reply[8:], unique)
	return append(reply, body...)
}

// abort ends the connection as the death of the daemon does.
func (d *fuseDaemon) abort() {
	d.t.Helper()
	must(d.t, os.WriteFile(filepath.Join(d.connection, "abort"), []byte("1"), 0o600))
	<-d.done
}
