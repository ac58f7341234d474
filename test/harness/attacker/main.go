// Command attacker is a process in a container that a test tells what to do: the
// system calls of a pod's user who means harm. Unless it is started with "plain",
// it makes a user and a mount namespace of its own first, as `unshare -Urm` does.
//
// It reads calls from its standard input, and answers each on its standard
// output: see Call and Answer. It links nothing that a container lacks.
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Call is one thing to do.
type Call struct {
	Do   string
	Args []string
	// Flags are those of mount(2) or umount2(2).
	Flags uintptr
}

// Answer says how it went; an empty Err is success.
type Answer struct{ Err string }

// The arguments with which this program starts itself: in namespaces of its own, to
// make calls there, or to do nothing.
const (
	own  = "own"
	idle = "idle"
)

func main() {
	// The name of the first thread is the name of the process.
	runtime.LockOSThread()
	mode := ""
	if len(os.Args) > 1 {
		mode = os.Args[1]
	}
	var err error
	switch mode {
	case "":
		cmd := unshared(own)
		cmd.Stdin = os.Stdin
		err = cmd.Run()
	case idle:
		_, _ = io.Copy(io.Discard, os.Stdin)
	case own:
		// As unshare(1) does.
		if err = unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err == nil {
			err = serve()
		}
	default:
		err = serve()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "attacker:", err)
		os.Exit(1)
	}
}

// unshared is this program once more in namespaces of its own, in which this user
// is root. It needs no privilege.
func unshared(mode string) *exec.Cmd {
	cmd := exec.Command("/proc/self/exe", mode)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWUSER | syscall.CLONE_NEWNS,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}},
		Pdeathsig:   syscall.SIGKILL,
	}
	return cmd
}

func serve() error {
	calls, answers := json.NewDecoder(os.Stdin), json.NewEncoder(os.Stdout)
	for {
		var c Call
		if err := calls.Decode(&c); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		var a Answer
		after, err := c.do()
		if err != nil {
			a.Err = err.Error()
		}
		if err := answers.Encode(a); err != nil {
			return err
		}
		if after != nil {
			after()
		}
	}
}

// do does what is to be done; after is for what this process may not return from.
func (c Call) do() (after func(), err error) {
	arg := func(i int) string {
		if i < len(c.Args) {
			return c.Args[i]
		}
		return ""
	}
	switch c.Do {
	case "mount":
		return nil, unix.Mount(arg(0), arg(1), arg(2), c.Flags, arg(3))
	case "umount":
		return nil, unix.Unmount(arg(0), int(c.Flags))
	case "mkdir":
		return nil, os.MkdirAll(arg(0), 0o755)
	case "name":
		name := append([]byte(arg(0)), 0)
		return nil, unix.Prctl(unix.PR_SET_NAME, uintptr(unsafe.Pointer(&name[0])), 0, 0, 0)
	case "copy":
		return nil, copyNamespace()
	case "overlay":
		return nil, overlay(arg(0))
	case firstless:
		return nil, withoutFirstThread(c.Args)
	case "map":
		return nil, mapped.file(arg(0))
	case "lock":
		return mapped.lock, nil
	default:
		return nil, fmt.Errorf("unknown call %q", c.Do)
	}
}

// copyNamespace starts a process that has a copy of all mounts here.
func copyNamespace() error {
	cmd := unshared(idle)
	if _, err := cmd.StdinPipe(); err != nil { // which ends with this process
		return err
	}
	return cmd.Start()
}

// overlay mounts an overlay on dir/at whose line in the mount table is longer than
// one MiB: each layer has a path of almost a page, and the kernel writes each
// newline in it as four bytes. Layers with long names are given by descriptor
// (Linux 6.13).
func overlay(dir string) error {
	const layers, depth = 150, 15
	name := strings.Repeat("\n", unix.NAME_MAX)
	base, err := unix.Open(dir, unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	for range depth { // no path of it is short enough for a call
		if err = unix.Mkdirat(base, name, 0o755); err != nil {
			return fmt.Errorf("mkdir: %w", err)
		}
		below, err := unix.Openat(base, name, unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err != nil {
			return fmt.Errorf("open: %w", err)
		}
		_ = unix.Close(base)
		base = below
	}
	defer unix.Close(base)
	fs, err := unix.Fsopen("overlay", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return fmt.Errorf("fsopen: %w", err)
	}
	defer unix.Close(fs)
	for i := range layers {
		layer := fmt.Sprint(i)
		if err := unix.Mkdirat(base, layer, 0o755); err != nil {
			return fmt.Errorf("mkdir: %w", err)
		}
		fd, err := unix.Openat(base, layer, unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err != nil {
			return fmt.Errorf("open: %w", err)
		}
		err = unix.FsconfigSetFd(fs, "lowerdir+", fd)
		_ = unix.Close(fd)
		if err != nil {
			return fmt.Errorf("fsconfig: %w", err)
		}
	}
	if err := unix.FsconfigCreate(fs); err != nil {
		return fmt.Errorf("fsconfig: %w", err)
	}
	mnt, err := unix.Fsmount(fs, unix.FSMOUNT_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("fsmount: %w", err)
	}
	defer unix.Close(mnt)
	at := dir + "/at"
	if err := os.Mkdir(at, 0o755); err != nil {
		return err
	}
	return unix.MoveMount(mnt, "", unix.AT_FDCWD, at, unix.MOVE_MOUNT_F_EMPTY_PATH)
}

// mapping is a page of a file that was not read yet.
type mapping struct {
	mem *os.File
	at  int64
}

var mapped mapping

// file maps a file, as long as that answers.
func (m *mapping) file(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	page, err := unix.Mmap(int(f.Fd()), 0, os.Getpagesize(), unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		return fmt.Errorf("mmap: %w", err)
	}
	m.at = int64(uintptr(unsafe.Pointer(&page[0])))
	m.mem, err = os.Open("/proc/self/mem")
	return err
}

// lock has one thread read the page through /proc/self/mem, for which the kernel
// holds the lock of all mappings, and another one map something else, for which it
// waits for that lock: as long as the file does not answer, every process waits that
// wants to see the command line of this process.
func (m *mapping) lock() {
	go func() { _, _ = m.mem.ReadAt(make([]byte, 1), m.at) }()
	go func() {
		for { // until the one above holds the lock
			other, err := unix.Mmap(-1, 0, os.Getpagesize(), unix.PROT_READ, unix.MAP_ANON|unix.MAP_PRIVATE)
			if err == nil {
				_ = unix.Munmap(other)
			}
		}
	}()
}
