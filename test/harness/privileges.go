package harness

import (
	"fmt"
	"os/exec"
	"runtime"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Lessen takes a privilege from a command. It runs on the thread that is about
// to start it, and that does nothing else afterwards.
type Lessen func(*exec.Cmd) error

// StartLess starts a command with less privileges than the test has.
func StartLess(cmd *exec.Cmd, less ...Lessen) error {
	if len(less) == 0 {
		return cmd.Start()
	}
	started := make(chan error)
	go func() {
		// Nothing else runs on a thread that has lost something. It stays: if it
		// ended, so would the processes that it has started before (see Pdeathsig).
		runtime.LockOSThread()
		started <- startLess(cmd, less)
		select {}
	}()
	return <-started
}

func startLess(cmd *exec.Cmd, less []Lessen) error {
	for _, take := range less {
		if err := take(cmd); err != nil {
			return err
		}
	}
	return cmd.Start()
}

// Without is root that lacks a capability (capabilities(7)), as in a container
// that is not privileged.
func Without(capability uintptr) Lessen {
	return func(*exec.Cmd) error {
		return unix.Prctl(unix.PR_CAPBSET_DROP, capability, 0, 0, 0)
	}
}

// InUserNamespace makes the command root in a user namespace of its own, as in a pod with
// hostUsers: false: it has all capabilities there, and none for the mounts here.
func InUserNamespace(cmd *exec.Cmd) error {
	root := []syscall.SysProcIDMap{{ContainerID: 0, HostID: 0, Size: 1}}
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWUSER, UidMappings: root, GidMappings: root}
	return nil
}

// Filtered is root for whom a system call gives EPERM, as under a seccomp
// profile (seccomp(2)).
func Filtered(call uint32) Lessen {
	return func(*exec.Cmd) error {
		const number = 0 // the offset of nr in struct seccomp_data
		filter := []unix.SockFilter{
			{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: number},
			{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: call, Jf: 1},
			{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ERRNO | uint32(unix.EPERM)},
			{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW},
		}
		program := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
		err := unix.Prctl(unix.PR_SET_SECCOMP, unix.SECCOMP_MODE_FILTER, uintptr(unsafe.Pointer(&program)), 0, 0)
		runtime.KeepAlive(filter)
		if err != nil {
			return fmt.Errorf("seccomp: %w", err)
		}
		return nil
	}
}
