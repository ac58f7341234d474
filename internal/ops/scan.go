package ops

import (
	"slices"
	"strconv"
	"sync/atomic"
	"time"
)

// scan is one walk over all processes. It reads procfs and nothing else, and never opens what a
// process has open.
type scan struct {
	proc procfs
	// end is when the budget is over.
	end time.Time
	// cut is true when there may be more: the budget or a limit was reached.
	cut bool
}

// otherProcesses lists the processes, without this worker and its server.
func (s *scan) otherProcesses() ([]int, error) {
	self, parent := 0, 0 // the worker and its server, as procfs numbers them
	if link, err := s.proc.readlink("self"); err == nil {
		self, _ = strconv.Atoi(link)
		status, _ := s.proc.read(link+"/status", 4<<10)
		parent, _ = strconv.Atoi(field(status, "PPid"))
	}
	pids, err := s.proc.pids()
	return slices.DeleteFunc(pids, func(pid int) bool { return pid == self || pid == parent }), err
}

// itemTimeout is how long the work for one process may take. Reading a file of procfs may wait
// for a lock in the kernel that the process holds.
const itemTimeout = 250 * time.Millisecond

// each does the work for one item after the other in a goroutine, and skips an item that takes
// longer than itemTimeout twice: take then gets ok == false. Once is no sign, as a busy node keeps
// this worker from a processor. The goroutine that is left behind ends with its item, or with this
// process: the operation uses its worker up.
func each[T, R any](s *scan, items []T, work func(T) R, take func(item T, r R, ok bool)) {
	for late := false; ; {
		done := eachInTime(s, items, work, take)
		skip := late && done == 0
		if items = items[done:]; len(items) == 0 {
			return
		}
		if !time.Now().Before(s.end) {
			s.cut = true
			return
		}
		if skip {
			var none R
			take(items[0], none, false)
			items = items[1:]
		}
		late = !skip
	}
}

// eachInTime returns the number of items done before one that took too long.
func eachInTime[T, R any](s *scan, items []T, work func(T) R, take func(T, R, bool)) int {
	results := make(chan R, len(items))
	var abandoned atomic.Bool
	defer abandoned.Store(true)
	go func() {
		for _, item := range items {
			if abandoned.Load() {
				return
			}
			results <- work(item)
		}
	}()
	timer := time.NewTimer(itemTimeout)
	defer timer.Stop()
	for i, item := range items {
		timer.Reset(min(itemTimeout, time.Until(s.end)))
		select {
		case r := <-results:
			take(item, r, true)
			continue
		case <-timer.C:
		}
		select { // where this goroutine was late itself, the result is there, too
		case r := <-results:
			take(item, r, true)
		default:
			return i
		}
	}
	return len(items)
}
