package cluster

import (
	"slices"
	"strings"

	"github.com/csi-addons/node-healer/pkg/facts/layout"
	"github.com/csi-addons/node-healer/pkg/healer"
)

// maxConditions bounds the mount points that are remembered of one volume.
const maxConditions = 64

type mountPointConditions struct {
	// pod is empty for conditions of the whole volume, or of its staging mount point:
	// every check sees those.
	pod     string
	reasons []string
}

// volumeConditions are the conditions of a volume, by mount point. A check need not
// see all mount points: the others keep what was last seen. It is not modified.
type volumeConditions map[string]mountPointConditions

// after returns the conditions after a report. A mount point that was not checked
// keeps its conditions as long as its pod is on this node.
func (c volumeConditions) after(r healer.Report, podHere func(uid string) bool) volumeConditions {
	now := conditionsOf(r.After)
	for path, m := range c {
		_, checked := r.After.Case.MountPoint(path)
		checked = checked || m.pod == "" || path == containersOf(m.pod)
		if !checked && len(now) < maxConditions && podHere(m.pod) {
			now[path] = m
		}
	}
	return now
}

func conditionsOf(d healer.Diagnosis) volumeConditions {
	now := volumeConditions{}
	add := func(name, pod, reason string) {
		if _, known := now[name]; !known && len(now) >= maxConditions {
			name, pod = "", ""
		}
		if m := now[name]; !slices.Contains(m.reasons, reason) {
			now[name] = mountPointConditions{pod, append(m.reasons, reason)}
		}
	}
	for _, c := range d.Conditions {
		name, pod := mountPointName(d.Case, c.MountPoint)
		add(name, pod, string(c.Reason))
	}
	for _, f := range d.Failures {
		add("", "", "not examined by "+f.Provider)
	}
	return now
}

// mountPointName returns the name of a mount point that is the same in the next check, and its
// pod. The mount points in a pod's containers, and its subPaths, share one name: they are listed
// only while something is wrong there, and their paths may contain a process id.
func mountPointName(c healer.Case, path string) (name, pod string) {
	p, _ := c.MountPoint(path)
	if p.InContainer != nil || p.Layout.Kind == layout.Subpath {
		return containersOf(p.PodUID), p.PodUID
	}
	return path, p.PodUID
}

func containersOf(pod string) string { return "in the containers of " + pod }

func (c volumeConditions) reasons() string {
	var all []string
	for _, m := range c {
		all = append(all, m.reasons...)
	}
	slices.Sort(all)
	return strings.Join(slices.Compact(all), ",")
}

// podsOf returns the UIDs of the pods whose mount points a report has, also an empty one.
func podsOf(r healer.Report) []string {
	var all []string
	for _, p := range slices.Concat(r.Before.Case.MountPoints, r.After.Case.MountPoints) {
		all = append(all, p.PodUID)
	}
	slices.Sort(all)
	return slices.Compact(all)
}
