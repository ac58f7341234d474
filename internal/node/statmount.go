package node

import (
	"errors"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/csi-addons/node-healer/internal/mount"
	"github.com/csi-addons/node-healer/pkg/facts"
)

// statmountTells finds out by asking what statmount(2) tells of what mountinfo does:
// all, since it knows the sources (Linux 6.13), or at least unique ids.
func (n *Namespace) statmountTells() (all, ids bool) {
	if n.fd != nil && n.id == 0 {
		return false, false
	}
	list, err := mount.ListAll(n.id, mount.Root)
	if err != nil {
		return false, false
	}
	var told mount.Fields
	var buf mount.Buffer
	listed := map[int]bool{}
	for _, id := range list {
		m, err := mount.Stat(n.id, id, mount.Everything, &buf)
		if err != nil || m.Told&mount.Always != mount.Always {
			continue
		}
		told |= m.Told
		listed[m.OldID] = true
	}
	table, err := n.readMountinfo()
	if err != nil {
		return false, false
	}
	missed := slices.DeleteFunc(slices.Clone(table.Mounts()), func(m facts.Mount) bool { return listed[m.OldID] })
	// A mount that was made just now may be missed. With more of them the kernel began
	// at the wrong mount of another namespace (mount.Lowest), which hides the right one.
	const wanted = mount.Options | mount.Source
	all = told&wanted == wanted && len(missed) <= len(table.Mounts())/10
	return all, !all && len(listed) > 0
}

func (n *Namespace) readStatmount() (Table, error) {
	ids, err := mount.ListAll(n.id, mount.Root)
	if err != nil {
		return Table{}, err
	}
	mounts := make([]facts.Mount, 0, len(ids))
	var buf mount.Buffer
	for _, id := range ids {
		m, err := n.mount(id, &buf)
		if errors.Is(err, unix.ENOENT) {
			continue // unmounted since it was listed
		}
		if err != nil {
			return Table{}, err
		}
		mounts = append(mounts, m)
	}
	return NewTable(mounts), nil
}

// mount asks for one mount.
func (n *Namespace) mount(id uint64, buf *mount.Buffer) (facts.Mount, error) {
	status, err := mount.Stat(n.id, id, mount.Everything, buf)
	return status.Mount, err
}
