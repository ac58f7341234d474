package facts

// Propagation says how a mount shares mount events (mount_namespaces(7)). The kernel
// gives the numbers of peer groups out again: they can be compared only among mounts
// that exist at the same time.
type Propagation struct {
	// Shared is the peer group's id, 0 when the mount is not shared.
	Shared uint64 `json:"shared,omitempty"`
	// Master is the peer group the mount receives events from, 0 for none.
	Master uint64 `json:"master,omitempty"`
}

// Receives reports whether mount events may come to the mount from another one.
func (p Propagation) Receives() bool { return p.Shared != 0 || p.Master != 0 }

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
	// SharingUnknown stays private: another way, as of a container that shares its mounts itself.
	SharingUnknown Sharing = "unknown"
)

// FollowsHost reports whether mounts made on the host appear in the container.
func (s Sharing) FollowsHost() bool {
	return s == SharingSlave || s == SharingPeer
}
