package healer

import "github.com/csi-addons/node-healer/pkg/facts"

// StartedWith is what a container has instead of the volume.
type StartedWith struct {
	// MountPoint is the path on the host at which it was found.
	MountPoint string
	facts.ContainerMount
}

// String returns the container's name and the path in it, for messages.
func (s StartedWith) String() string { return containerMountName(s.ContainerMount) }

// StartedBefore is a container that started before the volume's device got another
// number.
type StartedBefore struct {
	// MountPoint is the path on the host.
	MountPoint string
	facts.Container
	// Was is the number that it has, Now the volume's.
	Was, Now facts.Dev
}

// String returns the container's name, for messages.
func (s StartedBefore) String() string { return ContainerName(s.PodUID, s.ContainerID) }
