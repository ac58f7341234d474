package main

import (
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// firstless is the argument with which this program opens files, ends its first thread and
// lives on in others; and the call that starts it so.
const firstless = "firstless"

func init() {
	if len(os.Args) < 2 || os.Args[1] != firstless {
		return
	}
	for _, path := range os.Args[2:] {
		if _, err := unix.Open(path, unix.O_RDONLY, 0); err != nil {
			fmt.Fprintln(os.Stderr, "attacker:", path, err)
			os.Exit(1)
		}
	}
	go func() {
		for {
			time.Sleep(time.Hour)
		}
	}()
	_, _, _ = unix.Syscall(unix.SYS_EXIT, 0, 0, 0) // init runs on the first thread
}

// withoutFirstThread starts a process without its first thread, which has files open, and
// which ends with this one.
func withoutFirstThread(files []string) error {
	cmd := exec.Command("/proc/self/exe", append([]string{firstless}, files...)...)
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		return err
	}
	for {
		_, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/mnt", cmd.Process.Pid))
		threads, gone := os.ReadDir(fmt.Sprintf("/proc/%d/task", cmd.Process.Pid))
		switch {
		case gone != nil || err != nil && len(threads) < 2:
			return fmt.Errorf("it has ended: %w", cmd.Wait())
		case err != nil:
			return nil
		}
		time.Sleep(time.Millisecond)
	}
}
