package harness

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/csi-addons/node-healer/test/harness/faultfs"
)

// Workers lists the server's worker processes.
func (n *Node) Workers() []int {
	if n.server == nil {
		return nil
	}
	return childrenOf(n.PID())
}

// paused returns a worker that is stopped at an instant of Pause, 0 for none.
func (n *Node) paused() int {
	workers := n.Workers()
	if i := slices.IndexFunc(workers, func(pid int) bool { return State(pid) == "T" }); i >= 0 {
		return workers[i]
	}
	return 0
}

// Lives is false when a process is gone, but for its parent to notice.
func Lives(pid int) bool { return !slices.Contains([]string{"", "Z"}, State(pid)) }

// State returns a process's one-letter state, empty when it is gone.
func State(pid int) string {
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return ""
	}
	after := raw[bytes.LastIndexByte(raw, ')')+2:]
	return string(after[:1])
}

// Suspend stops a process (SIGSTOP), and returns when all of its threads have stopped.
func Suspend(t testing.TB, pid int) {
	t.Helper()
	Must(t, unix.Kill(pid, unix.SIGSTOP))
	Eventually(t, "the process stands still", func() bool { return faultfs.Stopped(pid) })
}

// WaitingThreads is how many threads of a process wait and cannot be interrupted.
func WaitingThreads(pid int) (n int) {
	tasks, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*", pid))
	for _, task := range tasks {
		if tid, err := strconv.Atoi(filepath.Base(task)); err == nil && State(tid) == "D" {
			n++
		}
	}
	return n
}

// childrenOf returns the processes that a process has started.
func childrenOf(pid int) []int {
	var pids []int
	dir := fmt.Sprintf("/proc/%d/task/", pid)
	threads, _ := os.ReadDir(dir) // filepath.Glob asks for each file twice
	for _, thread := range threads {
		raw, _ := os.ReadFile(dir + thread.Name() + "/children")
		for _, f := range strings.Fields(string(raw)) {
			if pid, err := strconv.Atoi(f); err == nil {
				pids = append(pids, pid)
			}
		}
	}
	return pids
}
