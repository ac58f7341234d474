package harness

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// userRoot is the user on the host that is root in a user namespace.
const userRoot = 100000

// StartUserContainer is StartContainer for a pod with a user namespace of its
// own (hostUsers: false), which owns the container's mount namespace. It is made
// by hand: runc can do that from 1.2 on, and the tests' may be older. Mounts are
// private binds; a read-only one is locked, so that no process in there can make it
// writable. It starts in a hundredth of a second of its own: the kernel cuts the start of a
// process down to that, and the server names a container that may have started meanwhile.
func (n *Node) StartUserContainer(spec ContainerSpec) *Container {
	n.T.Helper()
	t := n.T
	awaitHundredth(t)
	defer awaitHundredth(t)
	spec = spec.complete(n)
	c := spec.container(n)
	bundle := filepath.Join(n.Dir, "bundle-"+c.id)
	spec.layOut(t, bundle)
	rootfs := filepath.Join(bundle, "rootfs")
	Mkdir(t, filepath.Join(rootfs, "old"))
	// Root in there is an unprivileged user out here, and has to reach its directory.
	Must(t, os.Chmod(filepath.Dir(n.Dir), 0o711))
	shell := exec.Command("/bin/busybox", "sh", "-c", fmt.Sprintf(
		`read -r go && cd %s && busybox pivot_root . old && /bin/busybox umount -l /old && exec "$@"`, rootfs), "sh")
	shell.Args = append(shell.Args, spec.args()...)
	ids := []syscall.SysProcIDMap{{ContainerID: 0, HostID: userRoot, Size: 65536}}
	shell.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWUSER | syscall.CLONE_NEWNS,
		UidMappings: ids, GidMappings: ids, GidMappingsEnableSetgroups: true,
		Credential: &syscall.Credential{}, // root in there
		Pdeathsig:  syscall.SIGKILL,
	}
	shell.Stderr = os.Stderr
	begin, err := shell.StdinPipe()
	Must(t, err)
	// What a new namespace has from its parent is locked there.
	unlock := bindReadOnly(t, rootfs, spec.Mounts)
	Must(t, shell.Start())
	unlock()
	c.pid = shell.Process.Pid
	joinPod(t, c.pid, c.pod, c.id)
	ended := make(chan struct{})
	go func() { defer close(ended); _ = shell.Wait() }()
	c.end = func() { _ = shell.Process.Kill(); <-ended }
	t.Cleanup(c.Kill)
	c.enter = []string{"nsenter", "--target", strconv.Itoa(c.pid), "--user", "--mount", "--root", "--wd"}
	Must(t, inNamespace(c.pid, func() error { return bindAll(rootfs, spec.Mounts) }))
	_, err = begin.Write([]byte("go\n"))
	Must(t, err)
	Eventually(t, "the container runs", func() bool {
		at := c.MountsAt("/") // until pivot_root the machine's own
		return len(at) == 1 && filepath.Base(at[0].Root) == "rootfs" && len(c.MountsAt("/old")) == 0
	})
	return c
}

// awaitHundredth returns in a later hundredth of a second since the boot.
func awaitHundredth(t testing.TB) {
	hundredth := func() int64 {
		var now unix.Timespec
		Must(t, unix.ClockGettime(unix.CLOCK_BOOTTIME, &now))
		return now.Nano() / int64(time.Second/100)
	}
	begun := hundredth()
	Eventually(t, "a later hundredth of a second", func() bool { return hundredth() > begun })
}

// bindReadOnly binds the read-only mounts into a container's root as the host sees
// it, and returns a function that unmounts them.
func bindReadOnly(t testing.TB, rootfs string, mounts []ContainerMount) (off func()) {
	t.Helper()
	var bound []string
	for _, m := range mounts {
		if !m.readOnly() {
			continue
		}
		at := filepath.Join(rootfs, m.At)
		Mkdir(t, at)
		Must(t, unix.Mount(m.Source, at, "", unix.MS_BIND, ""))
		Must(t, unix.Mount("", at, "", unix.MS_PRIVATE, ""))
		Must(t, unix.Mount("", at, "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY, ""))
		bound = append(bound, at)
	}
	return func() {
		for _, at := range bound {
			Must(t, unix.Unmount(at, unix.MNT_DETACH))
		}
	}
}

// inNamespace does something in the mount namespace of a process. The thread comes
// back: if it ended, so would the processes that it has started (see Pdeathsig).
func inNamespace(pid int, do func() error) error {
	var files [3]*os.File
	for i, name := range []string{"/proc/thread-self/ns/mnt", ".", fmt.Sprintf("/proc/%d/ns/mnt", pid)} {
		f, err := os.Open(name)
		if err != nil {
			return err
		}
		defer f.Close()
		files[i] = f
	}
	own, directory, mounts := files[0], files[1], files[2]
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := unix.Unshare(unix.CLONE_FS); err != nil {
		return fmt.Errorf("unshare(CLONE_FS): %w", err)
	}
	if err := unix.Setns(int(mounts.Fd()), unix.CLONE_NEWNS); err != nil {
		return fmt.Errorf("enter the mount namespace of %d: %w", pid, err)
	}
	err := do()
	return errors.Join(err, unix.Setns(int(own.Fd()), unix.CLONE_NEWNS), directory.Chdir())
}

// bindAll binds rootfs on itself, and the mounts into it.
func bindAll(rootfs string, mounts []ContainerMount) error {
	if err := unix.Mount(rootfs, rootfs, "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
		return fmt.Errorf("bind %s: %w", rootfs, err)
	}
	for _, m := range mounts {
		if m.readOnly() {
			continue // it is there
		}
		at := filepath.Join(rootfs, m.At)
		if err := os.MkdirAll(at, 0o755); err != nil {
			return err
		}
		if err := unix.Mount(m.Source, at, "", unix.MS_BIND, ""); err != nil {
			return fmt.Errorf("bind %s: %w", m.Source, err)
		}
		if err := unix.Mount("", at, "", unix.MS_PRIVATE, ""); err != nil {
			return fmt.Errorf("make %s private: %w", at, err)
		}
	}
	return nil
}
