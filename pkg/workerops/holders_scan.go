package workerops

import (
	"fmt"
	"slices"
	"strconv"
	"time"
)

// scan is one walk over all processes. It reads procfs and nothing else; it
// never opens what a process has open.
type scan struct {
	proc int // procfs
	end  time.Time
	// follow is true when magic links may be followed: see mayFollow.
	follow bool
	// owners tells which mount namespaces may be read; nil: all.
	owners *owners
	left   mountsLeft
	// self and parent are the worker and its server, as procfs numbers them.
	self, parent int

	superblocks map[Number]bool
	devices     map[Number]bool

	processes []process
	spaces    map[uint64]*space
	mounts    map[int]mounted // by mountinfo's id, which is unique in the whole kernel
	found     map[int]found   // by process
	unseen    map[int]bool    // processes
	answer    HoldersAnswer
}

// found is what one process holds of what was asked for.
type found struct {
	superblocks map[Number]How
	devices     map[Number]How
	unknown     int
	unseen      bool
}

func newScan(proc int, q HoldersQuery) *scan {
	s := &scan{
		proc:        proc,
		superblocks: map[Number]bool{},
		devices:     map[Number]bool{},
		spaces:      map[uint64]*space{},
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
	s.follow = s.mayFollow()
	return s
}

func (s *scan) run(budget time.Duration) (HoldersAnswer, error) {
	s.end = time.Now().Add(budget)
	pids, err := s.whoRuns()
	if err != nil {
		return HoldersAnswer{}, fmt.Errorf("list processes: %w", err)
	}
	// In this order: a mapping can only be read by waiting for the process, and
	// what is known before is not lost to one that lets us wait.
	s.readLinks(pids)
	s.readMountTables()
	s.readFiles()
	s.readMappings()
	// What was found late is worth a name too.
	s.end = s.end.Add(patience)
	s.nameThem()
	s.answer.Unseen = len(s.unseen)
	s.answer.Swaps = s.swaps()
	return s.answer, nil
}

// whoRuns lists the processes, and finds out who we are: procfs may number
// processes as another pid namespace does.
func (s *scan) whoRuns() ([]int, error) {
	if link, err := s.readlink("self"); err == nil {
		s.self, _ = strconv.Atoi(link)
		s.parent = s.parentOf(s.self)
	}
	names, err := s.list(".")
	if err != nil {
		return nil, err
	}
	var pids []int
	for _, name := range names {
		if pid, err := strconv.Atoi(name); err == nil && pid != s.self && pid != s.parent {
			pids = append(pids, pid)
		}
	}
	slices.Sort(pids)
	return pids, nil
}

// add notes one thing held.
func (f *found) add(s *scan, dev Number, how How) {
	if s.superblocks[dev] {
		if f.superblocks == nil {
			f.superblocks = map[Number]How{}
		}
		f.superblocks[dev] |= how
	}
}

// addDevice notes an open device node.
func (f *found) addDevice(s *scan, dev Number) {
	if s.devices[dev] {
		if f.devices == nil {
			f.devices = map[Number]How{}
		}
		f.devices[dev] |= HowDevice
	}
}

// merge notes what was found of a process; ok is false when it did not let us
// look.
func (s *scan) merge(p process, f found, ok bool) {
	s.answer.Unknown += f.unknown
	if f.unseen || !ok {
		s.unseen[p.pid] = true
	}
	if len(f.superblocks)+len(f.devices) == 0 {
		return
	}
	sum := s.found[p.pid]
	for dev, how := range f.superblocks {
		sum.add(s, dev, how)
	}
	for dev := range f.devices {
		sum.addDevice(s, dev)
	}
	s.found[p.pid] = sum
}
