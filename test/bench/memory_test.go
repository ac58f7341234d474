package bench

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/csi-addons/node-healer/test/harness"
)

// memory measures the server with its workers, while and after many callers
// check every volume again and again.
func (m thousand) memory(t *testing.T) {
	done := make(chan time.Duration, 1)
	a := newAgent(t)
	go func() {
		done <- ask[time.Duration](a, "sweep", sweepQuestion{
			Socket: m.node.Socket(), Requests: m.requests, Callers: memoryCallers, Rounds: memoryRounds,
		})
	}()
	var most memoryUse
	for loaded := true; loaded; {
		select {
		case <-done:
			loaded = false
		case <-time.After(50 * time.Millisecond):
			if now := memoryOf(m.node); now.resident() > most.resident() {
				most = now
			}
		}
	}
	awaitQuiet(m.node)
	after := memoryOf(m.node)
	row("resident memory of server and idle workers, 1,000 volumes, right after load", after.String(), mebi(after.resident()), atMost(40, " MiB"))
	row("the same, shared pages counted once", after.shares(), mebi(after.share()), untold(" MiB"))
	harness.Eventually(t, "one worker is left", func() bool { return len(m.node.Workers()) == 1 })
	rest := memoryOf(m.node)
	row("the same without work for some seconds, and one worker", rest.String(), mebi(rest.resident()), atMost(40, " MiB"))
	row("the same, shared pages counted once", rest.shares(), mebi(rest.share()), untold(" MiB"))
	row(fmt.Sprintf("the same with all workers, the most while %d callers check", memoryCallers), most.String(), mebi(most.resident()), untold(" MiB"))
	row("the same, shared pages counted once", most.shares(), mebi(most.share()), untold(" MiB"))
}

const (
	memoryCallers = 16
	memoryRounds  = 20
)

// memoryUse is what server and workers use.
type memoryUse struct {
	server  resident
	workers []resident
}

// resident is what one process has in memory, in bytes: all of it, and with its
// part only of the pages that it shares (proc_pid_smaps(5), Rss and Pss).
type resident struct{ resident, share int }

func (m memoryUse) resident() int {
	sum := m.server.resident
	for _, w := range m.workers {
		sum += w.resident
	}
	return sum
}

func (m memoryUse) share() int {
	sum := m.server.share
	for _, w := range m.workers {
		sum += w.share
	}
	return sum
}

func (m memoryUse) String() string {
	return fmt.Sprintf("server %.1f + %d workers %.1f MiB", mebi(m.server.resident), len(m.workers), mebi(m.resident()-m.server.resident))
}

// shares is the same with shared pages counted once.
func (m memoryUse) shares() string {
	return fmt.Sprintf("server %.1f + %d workers %.1f MiB", mebi(m.server.share), len(m.workers), mebi(m.share()-m.server.share))
}

func mebi(bytes int) float64 { return float64(bytes) / (1 << 20) }

func memoryOf(n *harness.Node) memoryUse {
	m := memoryUse{server: residentOf(n.PID())}
	for _, w := range n.Workers() {
		m.workers = append(m.workers, residentOf(w))
	}
	return m
}

// residentOf is zero for a process that is gone.
func residentOf(pid int) resident {
	var r resident
	raw, _ := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
	for line := range strings.Lines(string(raw)) {
		var kib int
		if n, _ := fmt.Sscanf(line, "Rss: %d kB", &kib); n == 1 {
			r.resident = kib << 10
		}
		if n, _ := fmt.Sscanf(line, "Pss: %d kB", &kib); n == 1 {
			r.share = kib << 10
		}
	}
	return r
}
