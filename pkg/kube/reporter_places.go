package kube

import (
	"maps"
	"slices"
	"strings"

	"github.com/csi-addons/node-healer/pkg/healer"
	"github.com/csi-addons/node-healer/pkg/host"
)

// maxIll bounds the mount points that are remembered of one volume.
const maxIll = 64

// illness is what is wrong at one place.
type illness struct {
	// pod is empty for what is wrong with the whole volume, or where it is
	// staged: whoever asks sees that.
	pod     string
	reasons string
}

// illnesses is what is wrong with a volume, by path: who asks for one place need
// not see the others, which are as they were last seen. It is never changed.
type illnesses map[string]illness

// after gives what is wrong when a report has come. A mount point that it did not look
// at stays ill as long as its pod is here.
func (ill illnesses) after(r healer.Report, here func(pods []string) []string) illnesses {
	if len(ill) == 0 && r.After.Healthy() {
		return nil
	}
	now := illnessesOf(r.After)
	unseen := maps.Clone(ill)
	maps.DeleteFunc(unseen, func(path string, i illness) bool {
		return i.pod == "" || path == containerMountPoint(i.pod) || looksAt(r.After.Case, path)
	})
	if len(unseen) == 0 {
		return now
	}
	var pods []string
	for _, i := range unseen {
		pods = append(pods, i.pod)
	}
	pods = here(pods)
	for path, i := range unseen {
		if len(now) < maxIll && slices.Contains(pods, i.pod) {
			now[path] = i
		}
	}
	return now
}

func illnessesOf(d healer.Diagnosis) illnesses {
	found := map[string]map[string]bool{}
	note := func(path, reason string) {
		if found[path] == nil && len(found) >= maxIll {
			path = ""
		}
		if found[path] == nil {
			found[path] = map[string]bool{}
		}
		found[path][reason] = true
	}
	spots := spotsOf(d.Case)
	for _, c := range d.Conditions {
		note(spots.of(c.MountPoint).name, string(c.Reason))
	}
	for _, f := range d.Failures {
		note("", "not examined by "+f.Provider)
	}
	pods := map[string]string{}
	for _, s := range spots {
		pods[s.name] = s.pod
	}
	now := illnesses{}
	for name, reasons := range found {
		now[name] = illness{pods[name], strings.Join(slices.Sorted(maps.Keys(reasons)), ",")}
	}
	return now
}

// spot is a mount point by a name that stays the same from one look to the next, and its
// pod.
type spot struct{ name, pod string }

// spots are the mount points of a case, by path.
type spots map[string]spot

// spotsOf names the mount points. What containers have, and their subPaths, are mount points
// only while something is wrong there, and a path that leads into a container has
// a process id in it: they are one spot for each pod. A look that says nothing of
// it has found nothing there.
func spotsOf(c healer.Case) spots {
	all := spots{}
	for _, p := range c.MountPoints {
		s := spot{p.Path, p.PodUID}
		if p.InContainer != nil || p.Layout.Kind == host.LayoutSubpath {
			s.name = containerMountPoint(p.PodUID)
		}
		all[p.Path] = s
	}
	return all
}

func (all spots) of(path string) spot {
	if s, known := all[path]; known {
		return s
	}
	return spot{name: path}
}

func containerMountPoint(pod string) string { return "in the containers of " + pod }

func looksAt(c healer.Case, path string) bool {
	return slices.ContainsFunc(c.MountPoints, func(p healer.MountPoint) bool { return p.Path == path })
}

// reasons is the same as long as the same is wrong, wherever.
func (ill illnesses) reasons() string {
	all := map[string]bool{}
	for _, one := range ill {
		for reason := range strings.SplitSeq(one.reasons, ",") {
			all[reason] = true
		}
	}
	return strings.Join(slices.Sorted(maps.Keys(all)), ",")
}
