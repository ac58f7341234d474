// Package faultfs is a FUSE filesystem that fails as a test tells it to: it
// answers with an errno, late, or never, loses writes, is stopped, or dies.
// Its daemon is a process of its own, the test binary once more.
//
// Nothing here looks at the mount after it was made: who asks a filesystem that
// does not answer waits for ever, and a test that does so cannot clean up. Tests
// look at the path of a mount only while it has no fault.
package faultfs

import (
	"cmp"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/csi-addons/node-healer/internal/mount"
)

// Config says what is served.
type Config struct {
	// Disk is a file that appears as disk.img; empty: there is none.
	Disk string `json:",omitempty"`
	// Valid is how long the kernel may believe names and attributes.
	Valid time.Duration
	// Name is the mount's source, and its type after "fuse."; empty: faultfs.
	Name string `json:",omitempty"`
	// Source is the mount's source, if it is not its name.
	Source string `json:",omitempty"`
}

// FS is a mounted filesystem with its daemon.
type FS struct {
	t      testing.TB
	dir    string
	daemon *exec.Cmd
	ended  chan struct{}
	// connection is its directory in fusectl.
	connection string
	control    *os.File
	orders     *json.Encoder
	answers    *json.Decoder
	askers     []*Asker
}

// Mount mounts the filesystem on a directory until the end of the test. It has
// a few small files (see Files), and disk.img if there is a Disk.
func Mount(t testing.TB, dir string, c Config) *FS {
	t.Helper()
	f := &FS{t: t, dir: dir, ended: make(chan struct{})}
	// The mount is made here and the daemon gets the descriptor: so it is there
	// when this returns, and the daemon is not asked for it.
	fd, err := unix.Open("/dev/fuse", unix.O_RDWR|unix.O_CLOEXEC, 0)
	f.must(err)
	dev := os.NewFile(uintptr(fd), "/dev/fuse")
	defer dev.Close() // the last one who has it open is then the daemon
	name := cmp.Or(c.Name, "faultfs")
	f.must(unix.Mount(cmp.Or(c.Source, name), dir, "fuse."+name, unix.MS_NOSUID|unix.MS_NODEV,
		fmt.Sprintf("fd=%d,rootmode=40000,user_id=0,group_id=0,allow_other", fd)))
	t.Cleanup(f.end)
	f.connection = connection(t, dir)
	f.start(dev, c)
	return f
}

// start starts the daemon and waits until it serves.
func (f *FS) start(dev *os.File, c Config) {
	f.t.Helper()
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	f.must(err)
	f.control = os.NewFile(uintptr(pair[0]), "control")
	theirs := os.NewFile(uintptr(pair[1]), "control")
	defer theirs.Close()
	f.orders, f.answers = json.NewEncoder(f.control), json.NewDecoder(f.control)
	config, err := json.Marshal(c)
	f.must(err)
	f.daemon = exec.Command(Program)
	f.daemon.Env = append(os.Environ(), configEnv+"="+string(config))
	f.daemon.ExtraFiles = []*os.File{dev, theirs} // see daemon.go
	f.daemon.Stderr = os.Stderr
	f.daemon.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	f.must(f.daemon.Start())
	go func() {
		defer close(f.ended)
		_ = f.daemon.Wait()
	}()
	f.order(order{})
}

// connection returns the directory in fusectl of what is mounted on dir.
func connection(t testing.TB, dir string) string {
	t.Helper()
	table, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	defer table.Close()
	mounts, err := mount.Parse(table)
	if err != nil {
		t.Fatal(err)
	}
	const fusectl = "/sys/fs/fuse/connections"
	path, mounted := "", false
	for _, m := range mounts {
		switch m.Path {
		case dir:
			path = filepath.Join(fusectl, fmt.Sprint(m.Dev.Minor))
		case fusectl:
			mounted = true
		}
	}
	if !mounted {
		if err := unix.Mount("fusectl", fusectl, "fusectl", 0, ""); err != nil {
			t.Fatal(err)
		}
	}
	return path
}

// Files are the small files that every faultfs has, with their content.
var Files = map[string]string{"a": "first", "b": "second"}

// Disk is the path of disk.img.
func (f *FS) Disk() string { return filepath.Join(f.dir, diskName) }

// end leaves nothing behind, whatever state the daemon is in.
func (f *FS) end() {
	// Waiting requests fail, and their processes can be killed.
	_ = os.WriteFile(filepath.Join(f.connection, "abort"), []byte("1"), 0)
	if f.daemon != nil && f.daemon.Process != nil {
		_ = f.daemon.Process.Kill()
		<-f.ended
	}
	for _, a := range f.askers {
		<-a.ended
	}
	if f.control != nil {
		_ = f.control.Close()
	}
	_ = unix.Unmount(f.dir, unix.MNT_DETACH)
}

// Waiting is the number of requests that wait for an answer.
func (f *FS) Waiting() int {
	f.t.Helper()
	raw, err := os.ReadFile(filepath.Join(f.connection, "waiting"))
	f.must(err)
	n := 0
	_, err = fmt.Sscan(strings.TrimSpace(string(raw)), &n)
	f.must(err)
	return n
}

func (f *FS) must(err error) {
	f.t.Helper()
	if err != nil {
		f.t.Fatal(err)
	}
}
