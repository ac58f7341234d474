package harness

import (
	"bytes"
	"fmt"
	"os"
	"slices"
)

// Workers lists the server's worker processes.
func (n *Node) Workers() []int {
	if n.server == nil {
		return nil
	}
	return childrenOf(n.PID())
}

// paused gives a worker that stands still at an instant of Pause, 0 for none.
func (n *Node) paused() int {
	workers := n.Workers()
	if i := slices.IndexFunc(workers, func(pid int) bool { return State(pid) == "T" }); i >= 0 {
		return workers[i]
	}
	return 0
}

// Lives is false when a process is gone, but for its parent to notice.
func Lives(pid int) bool { return !slices.Contains([]string{"", "Z"}, State(pid)) }

// State gives a process's one-letter state, empty when it is gone.
func State(pid int) string {
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return ""
	}
	after := raw[bytes.LastIndexByte(raw, ')')+2:]
	return string(after[:1])
}
