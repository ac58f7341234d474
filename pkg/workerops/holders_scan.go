package workerops

import (
	"slices"
	"strconv"
	"sync/atomic"
	"time"
)

// scan is one walk over all processes. It reads procfs and nothing else; it
// never opens what a process has open.
type scan struct {
	proc procfs
	end  time.Time
	// followLinks is true when magic links may be followed: see mayFollowLinks.
	followLinks bool
	// owners tells which mount namespaces may be read; nil: all.
	owners *owners
	left   mountsLeft
	// newest is a unique mount id from before the tables were read; 0 below Linux 6.8.
	newest uint64
	// self and parent are the worker and its server, as procfs numbers them.
	self, parent int

	superblocks map[Number]bool
	devices     map[Number]bool

	processes []process
	tables    map[uint64]*namespaceTable // by the namespace's inode number
	mounts    map[int]mounted            // by mountinfo's id, which is unique in the whole kernel
	found     map[int]found              // by process
	unseen    map[int]bool               // processes
	answer    HoldersAnswer
}

func newScan(proc procfs, q HoldersQuery) *scan {
	s := &scan{
		proc:        proc,
		superblocks: map[Number]bool{},
		devices:     map[Number]bool{},
		tables:      map[uint64]*namespaceTable{},
		mounts:      map[int]mounted{},
		found:       map[int]found{},
		unseen:      map[int]bool{},
		answer:      HoldersAnswer{Superblocks: map[Number]Held{}, Devices: map[Number]Held{}},
	}
	for _, n := range q.Superblocks {
		s.superblocks[n] = true
	}
	for _, n := range q.Devices {
		s.devices[n] = true
	}
	s.followLinks = s.mayFollowLinks()
	return s
}

func (s *scan) run(budget time.Duration) (HoldersAnswer, error) {
	s.end = time.Now().Add(budget)
	s.newest = newestMount(s.proc)
	pids, err := s.whoRuns()
	if err != nil {
		return HoldersAnswer{}, err
	}
	s.readProcesses(pids)
	s.readMountTables()
	s.readFiles()
	// What was found last is named too.
	s.end = s.end.Add(patience)
	s.nameHolders()
	s.answer.Unseen = len(s.unseen)
	return s.answer, nil
}

// whoRuns lists the processes, without this one and its server.
func (s *scan) whoRuns() ([]int, error) {
	if link, err := s.proc.readlink("self"); err == nil {
		s.self, _ = strconv.Atoi(link)
		s.parent = s.proc.parentOf(s.self)
	}
	pids, err := s.proc.pids()
	return slices.DeleteFunc(pids, func(pid int) bool { return pid == s.self || pid == s.parent }), err
}

// patience is how long one item of work may take. Reading a file of procfs may wait
// for a lock of the kernel that another process holds.
const patience = 250 * time.Millisecond

// each does the work for one item after the other in a goroutine, and skips an item
// that takes longer than patience: take then gets ok == false. The goroutine that is
// left behind ends with its item, or with this process: the worker is spent.
func each[T, R any](s *scan, items []T, work func(T) R, take func(item T, r R, ok bool)) {
	for len(items) > 0 {
		done := eachInTime(s, items, work, take)
		if items = items[done:]; len(items) == 0 {
			return
		}
		if !time.Now().Before(s.end) {
			s.answer.Cut = true
			return
		}
		var none R
		take(items[0], none, false)
		items = items[1:]
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
	timer := time.NewTimer(patience)
	defer timer.Stop()
	for i, item := range items {
		timer.Reset(min(patience, time.Until(s.end)))
		select {
		case r := <-results:
			take(item, r, true)
		case <-timer.C:
			return i
		}
	}
	return len(items)
}
