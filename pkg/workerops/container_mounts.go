package workerops

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strconv"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/csi-addons/node-healer/pkg/workerops/mountinfo"
)

// MountsQuery asks for mounts in the mount namespaces of containers.
type MountsQuery struct {
	Of []NamespaceOf
	// Superblocks are those whose mounts are wanted.
	Superblocks []Number
	// Current is one of which only mounts with an attribute of an unfinished step are
	// wanted: nosymfollow or nodiratime.
	Current Number
	// Beneath are directories: mounts of them, and of what lies in them, are wanted.
	Beneath []Directory
	// FSType and Source make the mounts of any superblock of that type and source
	// wanted, too; empty for none.
	FSType, Source string
	// Limit is the most mounts that are wanted of one namespace.
	Limit int
}

// Directory is a directory of a filesystem, by its path from the filesystem's root.
type Directory struct {
	Superblock Number
	Path       string
}

// shows is true for a mount of the directory, or of something in it.
func (d Directory) shows(dev Number, root string) bool {
	return dev == d.Superblock && beneath(d.Path, root)
}

// NamespaceOf names the mount namespace of a container by its process.
type NamespaceOf struct {
	Workload
	PID int
	// Namespace is the inode number.
	Namespace uint64
}

// MountsAnswer has an entry for each namespace.
type MountsAnswer struct {
	Of []MountsOf
}

// MountsOf are the wanted mounts of one namespace, and all that stands on the way
// to them: parents, and whatever is mounted at the same paths.
type MountsOf struct {
	Entries []MountEntry
	// Err says why they could not be read, Ended that the container is gone, Many
	// that there are more than the limit: then none is told.
	Err         string
	Ended, Many bool
}

// MountEntry is one mount of a namespace.
type MountEntry struct {
	mountinfo.Entry
	// Unique is the kernel's unique mount id; 0 where the kernel has none for another
	// namespace (below Linux 6.11).
	Unique uint64
}

// maxMountsRead bounds the mounts that are read of one namespace, which is what the
// kernel itself allows by default (fs.mount-max), maxMountsInAll those of all
// namespaces in one operation, and maxOnTheWay those that stand on the way to
// wanted ones.
const (
	maxMountsRead  = 100_000
	maxMountsInAll = 500_000
	maxOnTheWay    = 1024
)

var errTooManyMounts = fmt.Errorf("more mounts than are read: %d in one mount namespace, %d in all", maxMountsRead, maxMountsInAll)

func containerMounts(q MountsQuery) (MountsAnswer, error) {
	host, err := hostOwner()
	if err != nil {
		return MountsAnswer{}, err
	}
	match := func(e mountinfo.Entry) bool {
		dev, ok := parseNumber(e.Dev)
		if slices.ContainsFunc(q.Beneath, func(d Directory) bool { return ok && d.shows(dev, e.Root) }) {
			return true
		}
		if ok && dev == q.Current {
			return hasOptions(e, "nosymfollow") || hasOptions(e, "nodiratime")
		}
		return ok && slices.Contains(q.Superblocks, dev) || q.FSType != "" && e.FSType == q.FSType && e.Source == q.Source
	}
	proc, err := openDir("/proc")
	if err != nil {
		return MountsAnswer{}, fmt.Errorf("procfs: %w", err)
	}
	defer unix.Close(proc)
	r := matching{proc: proc, host: host, match: match, limit: q.Limit}
	a := MountsAnswer{Of: make([]MountsOf, len(q.Of))}
	for i, of := range q.Of {
		a.Of[i] = r.of(of)
	}
	return a, nil
}

// matching finds mounts that match, at most limit in one namespace.
type matching struct {
	proc  int
	host  owner
	match func(mountinfo.Entry) bool
	limit int
	left  mountsLeft
}

func (r *matching) of(n NamespaceOf) (found MountsOf) {
	entries, err := r.entries(n)
	switch {
	case errors.Is(err, errMany):
		found.Many = true
	case errors.Is(err, errEnded) || err != nil && gone(err):
		found.Ended = true
	case err != nil:
		found.Err = err.Error()
	default:
		found.Entries = entries
	}
	return found
}

var errChrooted = errors.New("its first process has another root directory")

var errMany = errors.New("more mounts than are looked at")

// entries gives what matches, and what stands on the way there.
func (r *matching) entries(n NamespaceOf) ([]MountEntry, error) {
	dir := strconv.Itoa(n.PID)
	namespace, err := retryEINTR(func() (int, error) {
		return unix.Openat(r.proc, dir+"/ns/mnt", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	})
	if err != nil {
		return nil, err
	}
	defer unix.Close(namespace)
	s := scan{proc: r.proc}
	cgroup, err := s.read(dir+"/cgroup", 8<<10)
	if err != nil {
		return nil, err
	}
	if !isInode(namespace, n.Namespace) || !r.host.owns(namespace) || WorkloadIn(string(cgroup)) != n.Workload {
		return nil, errEnded // it, or the one that had its number
	}
	if root, err := s.readlink(dir + "/root"); err != nil || root != "/" {
		return nil, cmp.Or(err, errChrooted) // it shows only what is mounted beneath
	}
	var table []mountinfo.Entry
	var paths []string
	err = r.left.readTable(r.proc, dir, n.Namespace, func(e mountinfo.Entry) error {
		if table = append(table, e); r.match(e) {
			paths = append(paths, e.Path)
		}
		if len(paths) > r.limit {
			return errMany
		}
		return nil
	})
	if err != nil || len(paths) == 0 {
		return nil, err
	}
	var entries []MountEntry
	for _, e := range table {
		if slices.ContainsFunc(paths, func(p string) bool { return beneath(e.Path, p) }) {
			entries = append(entries, MountEntry{Entry: e})
		}
	}
	if len(entries) > maxOnTheWay {
		return nil, errMany
	}
	number(entries, NamespaceID(namespace))
	return entries, nil
}

// mountsLeft counts how many mounts one operation may still read.
type mountsLeft struct{ read atomic.Int64 }

// readTable visits the mounts of the namespace that a process is in, given by its
// directory in an open procfs. A process that is in another one by the end may have
// gone there before: its table, whose maker may be hostile, counts for nothing, and
// the error is errEnded whatever was read.
func (l *mountsLeft) readTable(proc int, dir string, namespace uint64, visit func(mountinfo.Entry) error) error {
	fd, err := retryEINTR(func() (int, error) {
		return unix.Openat(proc, dir+"/mountinfo", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	})
	if err != nil {
		return err
	}
	f := os.NewFile(uintptr(fd), "mountinfo")
	defer f.Close()
	n := int64(0)
	err = mountinfo.Parse(f, func(e mountinfo.Entry) error {
		if n++; n > maxMountsRead || l.read.Add(1) > maxMountsInAll {
			return errTooManyMounts
		}
		return visit(e)
	})
	s := scan{proc: proc}
	if now, gone := s.namespaceOf(dir); gone != nil || now != namespace {
		l.read.Add(-n)
		return errEnded
	}
	return err
}

// NamespaceID asks for the unique id of a mount namespace (ioctl_nsfs(2),
// NS_GET_MNTNS_ID, Linux 6.11); 0 when the kernel has none.
func NamespaceID(fd int) uint64 {
	const getID = 0x8008b705
	var id uint64
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), getID, uintptr(unsafe.Pointer(&id))); errno != 0 {
		return 0
	}
	return id
}

// LowestMount gives the mount on which all others of a namespace stand. What a
// kernel takes for the root of another namespace may be the first of several mounts
// on that one (measured on 6.12, where the initramfs had mounted more than the root
// directory), and then nothing else is listed.
func LowestMount(namespace uint64) uint64 {
	lowest := uint64(allMounts)
	list := mountIDRequest{Mount: allMounts, Namespace: namespace}
	list.Size = uint32(unsafe.Sizeof(list))
	var id uint64
	n, _, errno := unix.Syscall6(unix.SYS_LISTMOUNT, uintptr(unsafe.Pointer(&list)),
		uintptr(unsafe.Pointer(&id)), 1, 0, 0, 0)
	runtime.KeepAlive(&list)
	for errno == 0 && n == 1 {
		one := mountIDRequest{Mount: id, Param: statMountBasic, Namespace: namespace}
		one.Size = list.Size
		var st mountStatus
		_, _, errno = unix.Syscall6(unix.SYS_STATMOUNT, uintptr(unsafe.Pointer(&one)),
			uintptr(unsafe.Pointer(&st)), unsafe.Sizeof(st), 0, 0, 0)
		runtime.KeepAlive(&one)
		if errno != 0 || st.Mask&statMountBasic == 0 {
			break
		}
		lowest = id
		if st.ParentID == id {
			break
		}
		id = st.ParentID
	}
	return lowest
}

// number gives mounts of a namespace their unique ids.
func number(entries []MountEntry, namespace uint64) {
	if namespace == 0 {
		return
	}
	at := make(map[int]int, len(entries))
	for i, e := range entries {
		at[e.ID] = i
	}
	visitMounts(namespace, statMountBasic, func(st *mountStatus, _ []byte) bool {
		if i, wanted := at[int(st.OldID)]; wanted && entries[i].Parent == int(st.OldParent) {
			entries[i].Unique = st.ID
			delete(at, int(st.OldID))
		}
		return len(at) > 0
	})
}

// visitMounts lists the mounts of a namespace without entering it, until visit is
// false: listmount(2) and statmount(2) walk no path. strings is what the offsets of
// a status point into.
func visitMounts(namespace, mask uint64, visit func(st *mountStatus, strings []byte) bool) {
	ids := make([]uint64, 512)
	buf := make([]byte, mountStrings+2*unix.PathMax)
	list := mountIDRequest{Mount: LowestMount(namespace), Namespace: namespace}
	list.Size = uint32(unsafe.Sizeof(list))
	for {
		n, _, errno := unix.Syscall6(unix.SYS_LISTMOUNT, uintptr(unsafe.Pointer(&list)),
			uintptr(unsafe.Pointer(&ids[0])), uintptr(len(ids)), 0, 0, 0)
		runtime.KeepAlive(&list)
		if errno != 0 {
			return
		}
		for _, id := range ids[:n] {
			one := mountIDRequest{Mount: id, Param: mask, Namespace: namespace}
			one.Size = list.Size
			_, _, errno := unix.Syscall6(unix.SYS_STATMOUNT, uintptr(unsafe.Pointer(&one)),
				uintptr(unsafe.Pointer(&buf[0])), uintptr(len(buf)), 0, 0, 0)
			runtime.KeepAlive(&one)
			st := (*mountStatus)(unsafe.Pointer(&buf[0]))
			if errno == 0 && st.Mask&mask == mask && !visit(st, buf[mountStrings:]) {
				return // what was unmounted since it was listed is left out
			}
		}
		if int(n) < len(ids) {
			return
		}
		list.Param = ids[n-1]
	}
}
