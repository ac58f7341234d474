package healer

import (
	"cmp"
	"strconv"

	"github.com/csi-addons/node-healer/internal/printable"
	"github.com/csi-addons/node-healer/pkg/facts"
)

// WorkloadName returns the name of a pod's container for messages, empty outside of
// pods.
func WorkloadName(podUID, containerID string) string {
	const shortID = 12
	switch {
	case podUID == "":
		return ""
	case containerID == "":
		return "pod " + printable.Name(podUID)
	default:
		return "pod " + printable.Name(podUID) + " container " + containerID[:min(len(containerID), shortID)]
	}
}

// ContainerName is WorkloadName for what is a container in any case.
func ContainerName(podUID, containerID string) string {
	return cmp.Or(WorkloadName(podUID, containerID), "a container")
}

func containerMountName(m facts.ContainerMount) string {
	return cmp.Or(WorkloadName(m.PodUID, m.ContainerID), "process "+strconv.Itoa(m.PID)) + " at " + strconv.Quote(m.Mount.Path)
}
