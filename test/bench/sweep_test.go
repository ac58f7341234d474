package bench

import (
	"errors"
	"fmt"
	"os/exec"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// sweep compares a check of every volume with what scripts do for that: ask
// findmnt(8) for the mount, and the filesystem with statfs(2).
func (m thousand) sweep(t *testing.T) {
	a := newAgent(t)
	var paths []string
	for _, v := range m.volumes {
		paths = append(paths, v.MountPoint())
	}
	sweep := func(callers int) time.Duration {
		return ask[time.Duration](a, "sweep", sweepQuestion{Socket: m.node.Socket(), Requests: m.requests, Callers: callers, Rounds: 1})
	}
	first := sweep(loopCallers)
	var one, several, looped, findmnt, findmnts times
	for range sweepRounds {
		one = append(one, sweep(1))
		findmnt = append(findmnt, ask[time.Duration](a, "findmnt", findmntQuestion{Paths: paths, Callers: 1}))
		several = append(several, sweep(sweepCallers))
		looped = append(looped, sweep(loopCallers))
		findmnts = append(findmnts, ask[time.Duration](a, "findmnt", findmntQuestion{Paths: paths, Callers: sweepCallers}))
	}
	line := func(what string, them, us time.Duration, must target) {
		row(what, fmt.Sprintf("%s / %s", milli(them), milli(us)), ratio(them, us), must)
	}
	line("findmnt and statfs for each of 1,000 ext4 loop volumes / sweep of them, one at a time", findmnt.median(), one.median(), atLeast(30, ""))
	line(fmt.Sprintf("the same, %d at a time", sweepCallers), findmnts.median(), several.median(), untold(""))
	line(fmt.Sprintf("first sweep of all, which writes 1,000 records / a later one, %d at a time as the loop", loopCallers), first, looped.median(), atMost(3, ""))
}

const (
	sweepRounds  = 3
	sweepCallers = 4
	loopCallers  = 20 // maxChecks of internal/loop
)

type sweepQuestion struct {
	Socket   string
	Requests [][]byte
	// Callers share the work, on one connection.
	Callers int
	// Rounds is how often all of them are swept.
	Rounds int
}

// sweepAll calls for every volume, and returns the time for all of them together.
func sweepAll(q sweepQuestion) (time.Duration, error) {
	c, err := dial(q.Socket)
	if err != nil {
		return 0, err
	}
	defer c.Close()
	requests, err := decode(q.Requests)
	if err != nil {
		return 0, err
	}
	start := time.Now()
	for range q.Rounds {
		if err := shared(q.Callers, len(requests), func(i int) error { return healthy(c, requests[i]) }); err != nil {
			return 0, err
		}
	}
	return time.Since(start), nil
}

type findmntQuestion struct {
	Paths   []string
	Callers int
}

// findmntAll asks for every path.
func findmntAll(q findmntQuestion) (time.Duration, error) {
	start := time.Now()
	err := shared(q.Callers, len(q.Paths), func(i int) error {
		if out, err := exec.Command("findmnt", "--noheadings", "--mountpoint", q.Paths[i]).CombinedOutput(); err != nil {
			return fmt.Errorf("findmnt: %w\n%s", err, out)
		}
		var st unix.Statfs_t
		return unix.Statfs(q.Paths[i], &st)
	})
	return time.Since(start), err
}

// shared does n things, some at a time.
func shared(callers, n int, thing func(i int) error) error {
	var (
		wg   sync.WaitGroup
		next atomic.Int64
		errs = make([]error, callers)
	)
	for c := range callers {
		wg.Go(func() {
			for i := int(next.Add(1)) - 1; i < n && errs[c] == nil; i = int(next.Add(1)) - 1 {
				errs[c] = thing(i)
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}
