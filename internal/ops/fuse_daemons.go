package ops

import (
	"cmp"
	"errors"
	"io"
	"maps"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/csi-addons/node-healer/internal/mount"
	"github.com/csi-addons/node-healer/pkg/facts"
)

// daemonsLimit bounds the daemons that are named.
const daemonsLimit = 1024

// daemons finds the processes that have the device of a mounted FUSE connection open. A driver that
// the server is part of may be one.
func (s *scan) daemons(q ProcessesQuery) (a ProcessesAnswer, err error) {
	rest := min(itemTimeout, time.Until(s.end)/2) // the budget is half of what there is until the deadline
	pids, err := s.proc.pids()
	if err != nil {
		return a, err
	}
	mounted := map[uint64]bool{}
	if err := (thread{}).visit(func(m facts.Mount) { mounted[m.Dev.FUSEConnection()] = true }); err != nil {
		return a, err
	}
	pids, pods := s.fewestFirst(pids)
	a.Cut = s.cut
	read := map[int]bool{initPID: true}
	var connected []connections
	spent := map[string]time.Duration{}
	for _, pod := range q.Skip {
		spent[pod] = givenUp
	}
	// reading has the pod of each reading that has not ended: one that was taken for late may have, and one that
	// is waited for no more may not.
	var reading sync.Map
	connectionsOf := func(pid int) connections {
		one := new(int)
		reading.Store(one, pods[pid])
		defer reading.Delete(one)
		return s.connectionsOf(pid)
	}
	take := func(pid int, found connections, ok bool) {
		if !ok { // what was begun for it may never end
			spent[pods[pid]] = givenUp
		}
		read[pid] = read[pid] || ok && !found.unread
		a.Untold += found.untold
		for _, found.by.Connection = range found.told {
			switch {
			case !mounted[found.by.Connection]:
			case len(a.Daemons) == daemonsLimit:
				a.Cut = true
			default:
				a.Daemons = append(a.Daemons, found.by)
				if slices.Contains(q.PeersOf, found.by.Connection) {
					connected = append(connected, found)
				}
			}
		}
	}
	// A pod that takes long is read in turn with others, as a healthy one may have hundreds of daemons.
	for limit, left := itemTimeout, pids; limit < givenUp; limit *= 2 {
		var later []int
		for _, pid := range left {
			pod, began := pods[pid], time.Now()
			if spent[pod] >= limit || !began.Before(s.end) {
				later = append(later, pid)
				continue
			}
			each(s, []int{pid}, connectionsOf, take)
			spent[pod] += time.Since(began)
		}
		left = later
	}
	if a.Untold > 0 && (len(a.Daemons) > 0 || namesConnections(s.proc)) {
		a.Untold = 0 // the kernel tells connections, so these devices are of none
	}
	a.Known = append(slices.Clone(a.Daemons), slices.DeleteFunc(q.Known, func(k facts.FUSEDaemon) bool {
		return !mounted[k.Connection] || slices.ContainsFunc(a.Daemons, func(d facts.FUSEDaemon) bool { return d.Connection == k.Connection })
	})...)
	a.Peers = s.peers(connected)
	s.end = s.end.Add(rest) // the processes that were not read are counted nevertheless
	s.cut = false
	unread := s.describe(slices.DeleteFunc(slices.Clone(pids), func(pid int) bool { return read[pid] }))
	a.Unread, a.UnreadOf = len(unread), unreadOf(unread, a.Known)
	a.Blocked = blocked(&reading, s.end)
	return a, nil
}

// blocked returns the pods of which a thread that reads waits in the kernel. Any other ends within itemTimeout;
// the answer does not wait for that beyond latest, or the walk misses its deadline.
func blocked(reading *sync.Map, latest time.Time) []string {
	for end := time.Now().Add(min(itemTimeout, time.Until(latest))); ; time.Sleep(time.Millisecond) {
		pods := map[string]bool{}
		reading.Range(func(_, pod any) bool { pods[pod.(string)] = true; return true })
		if len(pods) == 0 || time.Now().After(end) {
			return slices.Sorted(maps.Keys(pods))
		}
	}
}

// givenUp is more than any budget: no process of a pod is begun any more after one that was given up.
const givenUp = time.Hour

// fewestFirst sorts processes by how many descriptors they have (the size of /proc/<pid>/fd, Linux
// 6.2): a tenant's process may have a million, and those must not use up the time for the daemons
// of others. It also returns the pod of each, or its cgroup where it is in none. What is read of an
// open file takes as long as it has locks, of which a tenant may set any number, so those of a pod
// that took long wait for those of others. Nor may its processes have many such reads go on at once:
// the kernel keeps the text of all locks of one in memory that counts as this worker's.
func (s *scan) fewestFirst(pids []int) (sorted []int, pods map[int]string) {
	type share struct {
		descriptors int64
		pod         string
	}
	descriptors := make(map[int]int64, len(pids))
	pods = make(map[int]string, len(pids))
	each(s, pids, func(pid int) (p share) {
		_ = s.proc.inThread(pid, func(dir string) error { // fails if it has ended
			var st unix.Stat_t
			err := unix.Fstatat(int(s.proc), dir+"/fd", &st, unix.AT_SYMLINK_NOFOLLOW)
			text, _ := s.proc.read(dir+"/cgroup", 8<<10)
			w := WorkloadIn(string(text))
			p = share{st.Size, cmp.Or(w.PodUID, w.Dir)}
			return err
		})
		return p
	}, func(pid int, p share, _ bool) { descriptors[pid], pods[pid] = p.descriptors, p.pod })
	sorted = slices.Clone(pids) // a goroutine that each left behind may still read pids
	slices.SortStableFunc(sorted, func(a, b int) int { return cmp.Compare(descriptors[a], descriptors[b]) })
	return sorted, pods
}

// connections are the FUSE connections whose devices a process has open.
type connections struct {
	// by is the process, if there is one in told.
	by     facts.FUSEDaemon
	told   []uint64
	untold int
	// sockets are the inode numbers of all its sockets; none where not all could be read.
	sockets []uint64
	// unread is true when not all of its open files could be read.
	unread bool
}

var errTooManyFiles = errors.New("more open files than are read in time")

func (s *scan) connectionsOf(pid int) (found connections) {
	end := time.Now().Add(itemTimeout) // then each goes on without this process
	err := s.proc.inThread(pid, func(dir string) error {
		found = connections{}
		return s.eachDescriptor(dir, end, func(fd string) error { return s.connectionAt(dir, fd, &found) })
	})
	if found.unread = err != nil && !gone(err); found.unread {
		found.sockets = nil // some would pass for all
	}
	if len(found.told) == 0 {
		return found
	}
	if found.by = s.processOf(pid).FUSEDaemon; found.by.PID == 0 { // it has ended since
		return connections{}
	}
	return found
}

// eachDescriptor visits what a process has open, if that can be done until end.
func (s *scan) eachDescriptor(dir string, end time.Time, visit func(fd string) error) error {
	fds, err := s.proc.open(dir + "/fd")
	if err != nil {
		return err
	}
	list := os.NewFile(uintptr(fds), "fd")
	defer list.Close()
	for {
		names, err := list.Readdirnames(256)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err == nil && time.Now().After(end) {
			err = errTooManyFiles
		}
		if err != nil {
			return err
		}
		for _, fd := range names {
			if err := visit(fd); err != nil && !gone(err) { // closed meanwhile
				return err
			}
		}
	}
}

// connectionAt adds the connection of a descriptor. The FUSE device may have any name, also one in
// a directory that is not there any more: where the kernel tells the connection, the name does not
// count. The link is read first: the fdinfo of a file without a path, as an epoll descriptor, may
// wait for what its process waits for, and a reader that waits there cannot be killed.
func (s *scan) connectionAt(dir, fd string, found *connections) error {
	link, err := s.proc.readlink(dir + "/fd/" + fd)
	if errors.Is(err, unix.ENAMETOOLONG) { // any process may have a file so deep down, also the device
		link, err = "/fuse", nil
	}
	if err != nil {
		return err
	}
	if inode, is := strings.CutPrefix(link, "socket:["); is {
		number, _ := strconv.ParseUint(strings.TrimSuffix(inode, "]"), 10, 64)
		found.sockets = append(found.sockets, number)
	}
	if !path.IsAbs(link) {
		return nil
	}
	raw, err := s.proc.read(dir+"/fdinfo/"+fd, 512)
	if err != nil {
		return err
	}
	connection, told := connectionIn(raw)
	switch {
	case told && !slices.Contains(found.told, connection): // a daemon may have it open once for each of its threads
		found.told = append(found.told, connection)
	case !told && path.Base(strings.TrimSuffix(link, " (deleted)")) == "fuse":
		found.untold++
	}
	return nil
}

func connectionIn(fdinfo []byte) (connection uint64, told bool) {
	connection, err := strconv.ParseUint(field(fdinfo, "fuse_connection"), 10, 64)
	return connection, err == nil
}

// namesConnections reports whether the kernel tells in fdinfo which connection a FUSE device is of
// (since about Linux 6.16). A device that was merely opened has none, so it makes a connection and
// looks.
func namesConnections(proc procfs) bool {
	device, err := mount.Open(unix.AT_FDCWD, "/dev/fuse", unix.O_RDWR)
	if err != nil {
		return false
	}
	defer unix.Close(device)
	mounted, err := mount.ConnectFUSE(device, "fuse", "none")
	if err != nil {
		return false
	}
	defer unix.Close(mounted)
	raw, err := proc.read("thread-self/fdinfo/"+strconv.Itoa(device), 512)
	_, told := connectionIn(raw)
	return err == nil && told
}

// unreadOf counts, for each connection of known daemons, those of the unread processes that may be
// one of its daemons, or have got the device's descriptor from one.
func unreadOf(unread []process, known []facts.FUSEDaemon) map[uint64]int {
	of := map[uint64]map[int]bool{}
	for _, k := range known {
		if of[k.Connection] == nil {
			of[k.Connection] = map[int]bool{}
		}
		for _, u := range unread {
			same := u.PID == k.PID && u.Started == k.Started
			if same || u.Dir == "" || u.PodUID == k.PodUID && (u.PodUID != "" || u.Dir == k.Dir) {
				of[k.Connection][u.PID] = true
			}
		}
	}
	counts := make(map[uint64]int, len(of))
	for connection, pids := range of {
		counts[connection] = len(pids)
	}
	return counts
}
