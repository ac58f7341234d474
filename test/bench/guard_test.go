package bench

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// guarded is set beneath the guard, to its directory.
const guarded = "NODE_HEALER_BENCH_DIR"

// guardPatience bounds the guard's waiting for what it ended.
const guardPatience = 20 * time.Second

// guard is the outermost process. It runs this binary once more, and when that
// ends, however it ends (a signal, or a test that is out of time), it ends the
// processes that are left, removes files, and removes the loop devices that were
// made. Mounts go with the private mount namespace, and with a mount the loop
// device is detached.
func guard() {
	if os.Getenv(guarded) != "" {
		return
	}
	code, err := guardRun()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = max(code, 1)
	}
	os.Exit(code)
}

func guardRun() (code int, err error) {
	// What loses its parent becomes our child.
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return 1, fmt.Errorf("prctl(PR_SET_CHILD_SUBREAPER): %w", err)
	}
	dir, err := os.MkdirTemp("", "node-healer-bench-")
	if err != nil {
		return 1, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	defer func() { err = errors.Join(err, removeLoops(dir)) }()
	defer func() { err = errors.Join(err, endChildren()) }()

	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGINT, syscall.SIGTERM)
	cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
	cmd.Env = append(os.Environ(), guarded+"="+dir, "TMPDIR="+dir)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		return 1, err
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	select {
	case err = <-ended:
	case s := <-stop:
		_ = cmd.Process.Kill()
		<-ended //nolint:errcheck // we killed it
		return 1, fmt.Errorf("stopped by a signal: %s", s)
	}
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return max(exit.ExitCode(), 1), nil
	}
	return 0, err
}

// endChildren kills everything that descends from us.
func endChildren() error {
	for deadline := time.Now().Add(guardPatience); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		for _, pid := range childrenOf("self") {
			_ = unix.Kill(pid, unix.SIGKILL)
		}
		for {
			pid, err := unix.Wait4(-1, nil, unix.WNOHANG, nil)
			if errors.Is(err, unix.ECHILD) {
				return nil
			}
			if pid <= 0 {
				break
			}
		}
	}
	return fmt.Errorf("processes are left: %v", childrenOf("self"))
}

// childrenOf lists the child processes of a process, "self" for ours.
func childrenOf(process string) []int {
	var pids []int
	tasks, _ := filepath.Glob("/proc/" + process + "/task/*/children")
	for _, task := range tasks {
		raw, _ := os.ReadFile(task)
		for _, f := range strings.Fields(string(raw)) {
			if pid, err := strconv.Atoi(f); err == nil {
				pids = append(pids, pid)
			}
		}
	}
	return pids
}
