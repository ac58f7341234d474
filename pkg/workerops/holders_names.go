package workerops

import (
	"cmp"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// processName is how a process is named in the answer.
type processName struct {
	command, cgroup string
	// ours is true for another worker of our server.
	ours bool
}

// nameHolders names the processes that were found, and those that stand for mount
// namespaces, and puts them into the answer.
func (s *scan) nameHolders() {
	superblocks, devices := map[Number][]HeldBy{}, map[Number][]HeldBy{}
	wanted := map[int]bool{}
	for pid, f := range s.found {
		wanted[pid] = true
		for dev, how := range f.superblocks {
			superblocks[dev] = append(superblocks[dev], HeldBy{PID: pid, How: how})
		}
		for dev, how := range f.devices {
			devices[dev] = append(devices[dev], HeldBy{PID: pid, How: how})
		}
	}
	for _, held := range s.answer.Superblocks {
		for _, m := range held.Mounts {
			wanted[m.PID] = true
		}
	}
	names := s.namesOf(wanted)
	for n := range s.superblocks {
		s.answer.Superblocks[n] = s.held(s.answer.Superblocks[n].Mounts, superblocks[n], names)
	}
	for n := range s.devices {
		s.answer.Devices[n] = s.held(nil, devices[n], names)
	}
}

func (s *scan) namesOf(wanted map[int]bool) map[int]processName {
	names := make(map[int]processName, len(wanted))
	each(s, slices.Sorted(maps.Keys(wanted)), s.nameOf, func(pid int, n processName, _ bool) { names[pid] = n })
	return names
}

func (s *scan) nameOf(pid int) processName {
	dir := strconv.Itoa(pid)
	command, _ := s.proc.read(dir+"/comm", 64)
	cgroup, _ := s.proc.read(dir+"/cgroup", 8<<10)
	return processName{
		command: strings.TrimSuffix(string(command), "\n"),
		cgroup:  string(cgroup),
		ours:    s.parent != 0 && s.proc.parentOf(pid) == s.parent,
	}
}

// held returns one answer, in a fixed order and within the limit.
func (s *scan) held(mounts []HeldMount, processes []HeldBy, names map[int]processName) (h Held) {
	slices.SortFunc(mounts, func(a, b HeldMount) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), strings.Compare(a.Path, b.Path))
	})
	slices.SortFunc(processes, func(a, b HeldBy) int { return a.PID - b.PID })
	for _, m := range mounts {
		if len(h.Mounts) == holdersLimit {
			s.answer.Cut = true
			break
		}
		m.Cgroup = names[m.PID].cgroup
		h.Mounts = append(h.Mounts, m)
	}
	for _, p := range processes {
		n := names[p.PID]
		if n.ours {
			continue
		}
		if len(h.Processes) == holdersLimit {
			s.answer.Cut = true
			break
		}
		p.Command, p.Cgroup = n.command, n.cgroup
		h.Processes = append(h.Processes, p)
	}
	return h
}
