package facts

import (
	"fmt"
	"slices"
)

// VolumePath is a path at which kubelet has a volume, and the volume that kubelet's file
// for the path names.
type VolumePath struct {
	VolData
	Path string
	// Staging is true for a path at which the volume is staged, and not published.
	Staging bool
	// Mounted is true where something is mounted at the path.
	Mounted bool
	// PV is the PersistentVolume, and PodUID the pod, that the path names; empty where it
	// names none. A pod's inline volume has no PersistentVolume.
	PV, PodUID string
}

// UnlistedError says that there may be volumes besides those that were found: files or
// directories of kubelet's could not be read.
type UnlistedError struct {
	// Paths are where, and Why is why the first could not be read. They are sorted, so that
	// an error that stays has the same text.
	Paths []string
	Why   string
}

func (e *UnlistedError) Error() string {
	text := fmt.Sprintf("cannot read what kubelet has at %s: %s", e.Paths[0], e.Why)
	if more := len(e.Paths) - 1; more > 0 {
		text += fmt.Sprintf(", and at %d more", more)
	}
	return text
}

// Hides reports whether there may be a volume at a path that was not found.
func (e *UnlistedError) Hides(path string) bool {
	return slices.ContainsFunc(e.Paths, func(p string) bool { return Beneath(p, path) })
}
