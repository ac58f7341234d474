package bench

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/csi-addons/node-healer/internal/node"
)

// TestFacts compares what it costs to find a volume's mounts, with fresh
// options, in a small and in a large mount table.
func TestFacts(t *testing.T) {
	wanted(t, "facts")
	var spaces []factsSpace
	for _, mounts := range []int{10_000, 100} {
		a := newAgentPropagatedMounts(t)
		volumes := ask[[]volumePaths](a, "lay out", layOutQuestion{Dir: t.TempDir(), Mounts: mounts})
		spaces = append(spaces, factsSpace{Namespace: a.namespace(), Volumes: volumes})
	}
	measure := newAgent(t)
	for _, c := range []struct {
		what    string
		inTurn  bool
		because target
	}{
		{"facts of one volume among 10,000 mounts / among 100", false, atMost(1.2, "")},
		{"the same, every volume of the node in turn", true, untold("")},
	} {
		got := ask[[]cost](measure, "facts", factsQuestion{Spaces: spaces, InTurn: c.inTurn})
		many, few := got[0], got[1]
		row(c.what, fmt.Sprintf("wall %s / %s", micro(many.Wall), micro(few.Wall)), ratio(many.Wall, few.Wall), c.because)
		row(c.what+", CPU", fmt.Sprintf("CPU %s / %s", micro(many.CPU), micro(few.CPU)), ratio(many.CPU, few.CPU), c.because)
	}
}

// factsSpace is a mount namespace with the volumes in it.
type factsSpace struct {
	Namespace string
	Volumes   []volumePaths
}

type factsQuestion struct {
	Spaces []factsSpace
	// InTurn goes round all volumes; otherwise it is one volume all the time.
	InTurn bool
}

// cost is what doing something once costs.
type cost struct{ Wall, CPU time.Duration }

const (
	// factsRounds is how often each namespace has its turn, factsBatch how many
	// volumes it is then asked for.
	factsRounds = 200
	factsBatch  = 500
)

// measureFacts returns the cost for one volume in each namespace.
func measureFacts(q factsQuestion) ([]cost, error) {
	var things []func(i int) error
	for _, s := range q.Spaces {
		ns, err := node.OpenNamespace(s.Namespace, nil)
		if err != nil {
			return nil, err
		}
		defer ns.Close()
		things = append(things, func(i int) error {
			if !q.InTurn {
				i = len(s.Volumes) / 2
			}
			return s.Volumes[i%len(s.Volumes)].facts(ns)
		})
	}
	return inTurn(factsRounds, factsBatch, things...)
}

// facts does what a check does to know the mounts of a volume.
func (v volumePaths) facts(ns *node.Namespace) error {
	table, err := ns.Topology()
	if err != nil {
		return err
	}
	for _, path := range []string{v.Published, v.Staged} {
		stack, there := ns.Refresh(table.Stack(path))
		if !there || len(stack) != 1 || stack[0].Path != path || len(stack[0].SuperOptions) == 0 {
			return fmt.Errorf("not the facts of %s: %v", path, stack)
		}
	}
	return nil
}

// inTurn does several things in batches that take turns, and returns the median
// cost of each.
func inTurn(rounds, batch int, things ...func(i int) error) ([]cost, error) {
	walls, cpus := make([]times, len(things)), make([]times, len(things))
	for round := -1; round < rounds; round++ {
		for at, thing := range things {
			start, used := time.Now(), cpuTime()
			for i := range batch {
				if err := thing(i + max(round, 0)*batch); err != nil {
					return nil, err
				}
			}
			if round < 0 {
				continue // the first one reads the whole table
			}
			walls[at] = append(walls[at], time.Since(start)/time.Duration(batch))
			cpus[at] = append(cpus[at], (cpuTime()-used)/time.Duration(batch))
		}
	}
	costs := make([]cost, len(things))
	for at := range things {
		costs[at] = cost{Wall: walls[at].median(), CPU: cpus[at].median()}
		if costs[at].CPU == 0 {
			return nil, errors.New("the kernel counts no CPU time")
		}
	}
	return costs, nil
}

// cpuTime is what this process has used so far, the collector's work included.
func cpuTime() time.Duration {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
