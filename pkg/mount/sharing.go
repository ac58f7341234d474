package mount

import "slices"

// Sharing says how a container's mount shares mount events, and with whom
// (mount_namespaces(7)).
type Sharing string

// The ways to share. A runtime makes a slave (HostToContainer) or a peer
// (Bidirectional) of the mount that the host has at the pod's mount point.
const (
	SharingNone Sharing = "none"
	// SharingSlave and SharingPeer are a slave and a peer of the host's mount.
	SharingSlave Sharing = "slave"
	SharingPeer  Sharing = "peer"
	// SharingOwn is a peer group without the host's mount, SharingSlaveOwn one that
	// receives from the host's mount.
	SharingOwn        Sharing = "own"
	SharingSlaveOwn   Sharing = "slave-own"
	SharingUnbindable Sharing = "unbindable"
	// SharingUnknown stays private.
	SharingUnknown Sharing = "unknown"
)

// SharingOf tells how a container's mount shares events while the host still has
// mounts of the same superblock. The numbers of peer groups are given out again, so
// they are compared only among mounts that are there at the same time.
func SharingOf(m Mount, onHost []Mount) Sharing {
	p := m.Propagation
	host := func(group uint64) bool {
		return group != 0 && slices.ContainsFunc(onHost, func(h Mount) bool { return h.Propagation.Shared == group })
	}
	switch {
	case p.Unbindable:
		return SharingUnbindable
	case p == Propagation{}:
		return SharingNone
	case host(p.Master) && p.Shared == 0:
		return SharingSlave
	case host(p.Master):
		return SharingSlaveOwn
	case host(p.Shared):
		return SharingPeer
	case p.Master == 0 && len(onHost) > 0:
		return SharingOwn
	default:
		return SharingUnknown
	}
}

// FollowsHost reports whether mounts made on the host appear in the container.
func (s Sharing) FollowsHost() bool {
	return s == SharingSlave || s == SharingSlaveOwn || s == SharingPeer
}
