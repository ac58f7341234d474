package ops

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/csi-addons/node-healer/internal/mount"
	"github.com/csi-addons/node-healer/pkg/facts"
)

// MountsQuery asks for mounts in the mount namespaces of containers.
type MountsQuery struct {
	// Of are containers whose PID and Namespace are known.
	Of     []facts.Container
	Wanted facts.Filter
	// Limit is the most wanted mounts that are returned of one namespace.
	Limit int
}

// MountsOf are the wanted mounts of one namespace, and all mounts on the way to them: those at
// the directories above, and those at the same paths. Their unique ids are 0 where the kernel
// tells none of another namespace (below Linux 6.11).
type MountsOf struct {
	Mounts []facts.Mount
	// Err says why they could not be read, Ended that the container is gone, Many that there
	// are more than the limit. Mounts is empty then.
	Err         string
	Ended, Many bool
}

// maxMountsRead bounds the mounts that are read of one namespace: as many as the kernel itself
// allows by default (fs.mount-max). maxMountsInAll bounds those of all namespaces in one
// operation, and maxOnTheWay those that are returned of one namespace.
const (
	maxMountsRead  = 100_000
	maxMountsInAll = 500_000
	maxOnTheWay    = 1024
)

var errTooManyMounts = fmt.Errorf("more mounts than are read: %d in one mount namespace, %d in all", maxMountsRead, maxMountsInAll)

func containerMounts(q MountsQuery) ([]MountsOf, error) {
	proc, host, err := openProcfs()
	if err != nil {
		return nil, err
	}
	defer proc.close()
	r := matching{proc: proc, host: host, wanted: q.Wanted, limit: q.Limit}
	found := make([]MountsOf, len(q.Of))
	for i, of := range q.Of {
		var mounts []facts.Mount
		err := proc.inThread(of.PID, func(dir string) (err error) {
			mounts, err = r.mounts(dir, of)
			return err
		})
		switch {
		case errors.Is(err, errMany):
			found[i].Many = true
		case errors.Is(err, errEnded) || err != nil && gone(err):
			found[i].Ended = true
		case err != nil:
			found[i].Err = err.Error()
		default:
			found[i].Mounts = mounts
		}
	}
	return found, nil
}

// matching finds mounts that match wanted, at most limit in one namespace.
type matching struct {
	proc   procfs
	host   mount.Owner
	wanted facts.Filter
	limit  int
	// read is how many mounts were read in this operation, of all namespaces.
	read int
}

var errChrooted = errors.New("its first process has another root directory")

var errMany = errors.New("more mounts than are inspected")

// mounts returns the mounts that match, and those on the way there, as a thread of the
// container's process shows them. dir is the thread's directory in procfs.
func (r *matching) mounts(dir string, n facts.Container) ([]facts.Mount, error) {
	namespace, err := r.proc.openNamespace(dir)
	if err != nil {
		return nil, err
	}
	defer unix.Close(namespace)
	cgroup, err := r.proc.read(dir+"/cgroup", 8<<10)
	if err != nil {
		return nil, err
	}
	owned, err := r.host.Owns(namespace)
	if err != nil {
		return nil, err
	}
	if !mount.IsInode(namespace, n.Namespace) || !owned || WorkloadIn(string(cgroup)) != n.Workload {
		return nil, errEnded // the container's process; another one has its number, or none
	}
	if root, err := r.proc.readlink(dir + "/root"); err != nil || root != "/" {
		return nil, cmp.Or(err, errChrooted) // its mountinfo lacks what is mounted above that
	}
	var table []facts.Mount
	var paths []string
	err = r.readTable(dir, n.Namespace, func(m facts.Mount) error {
		if table = append(table, m); r.wanted.Wants(m) {
			paths = append(paths, m.Path)
		}
		if len(paths) > r.limit {
			return errMany
		}
		return nil
	})
	if err != nil || len(paths) == 0 {
		return nil, err
	}
	mounts := slices.DeleteFunc(table, func(m facts.Mount) bool {
		return !slices.ContainsFunc(paths, func(p string) bool { return facts.Beneath(m.Path, p) })
	})
	if len(mounts) > maxOnTheWay {
		return nil, errMany
	}
	if id := mount.NamespaceID(namespace); id != 0 {
		mount.Identify(id, mounts, mount.Basic)
	}
	return mounts, nil
}

// readTable visits the mounts of the namespace that a thread is in, given by its directory in
// procfs. A thread that is in another namespace by the end may have entered that before its
// mountinfo was opened. Who made that namespace chose what is mounted there: what was read counts
// for nothing, and the error is errEnded.
func (r *matching) readTable(dir string, namespace uint64, visit func(facts.Mount) error) error {
	fd, err := r.proc.open(dir + "/mountinfo")
	if err != nil {
		return err
	}
	f := os.NewFile(uintptr(fd), "mountinfo")
	defer f.Close()
	before := r.read
	err = mount.Visit(f, func(m facts.Mount) error {
		if r.read++; r.read-before > maxMountsRead || r.read > maxMountsInAll {
			return errTooManyMounts
		}
		return visit(m)
	})
	if now, gone := r.proc.namespaceOf(dir); gone != nil || now != namespace {
		r.read = before
		return errEnded
	}
	return err
}
