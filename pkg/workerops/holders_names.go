package workerops

import (
	"cmp"
	"slices"
	"strconv"
	"strings"
)

// named is what there is to say of a process.
type named struct {
	command, cgroup string
	// ours is true for another worker of our server.
	ours bool
}

// nameThem names the processes that were found, and those that stand for mount
// namespaces, and puts them into the answer.
func (s *scan) nameThem() {
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
			wanted[m.PID] = m.PID != 0
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

func (s *scan) namesOf(wanted map[int]bool) map[int]named {
	var pids []int
	for pid, is := range wanted {
		if is {
			pids = append(pids, pid)
		}
	}
	slices.Sort(pids)
	names := make(map[int]named, len(pids))
	each(s, pids, s.nameOf, func(pid int, n named, _ bool) { names[pid] = n })
	return names
}

func (s *scan) nameOf(pid int) named {
	dir := strconv.Itoa(pid)
	command, _ := s.read(dir+"/comm", 64)
	cgroup, _ := s.read(dir+"/cgroup", 8<<10)
	return named{
		command: strings.TrimSuffix(string(command), "\n"),
		cgroup:  string(cgroup),
		ours:    s.parent != 0 && s.parentOf(pid) == s.parent,
	}
}

// held puts one answer together, in a fixed order and within the limit.
func (s *scan) held(mounts []HeldMount, processes []HeldBy, names map[int]named) (h Held) {
	slices.SortFunc(mounts, func(a, b HeldMount) int {
		if a.Namespace != b.Namespace {
			return cmp.Compare(a.Namespace, b.Namespace)
		}
		return strings.Compare(a.Path, b.Path)
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
