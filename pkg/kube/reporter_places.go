package kube

import (
	"maps"
	"slices"
	"strings"

	"github.com/csi-addons/node-healer/pkg/healer"
)

// maxIll bounds the places that are remembered of one volume.
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

// after gives what is wrong when a report has come. A place that it did not look
// at stays ill as long as its pod is here.
func (ill illnesses) after(r healer.Report, here func(pods []string) []string) illnesses {
	if len(ill) == 0 && r.After.Healthy() {
		return nil
	}
	now := illnessesOf(r.After)
	unseen := maps.Clone(ill)
	maps.DeleteFunc(unseen, func(path string, i illness) bool { return i.pod == "" || looksAt(r.After.Case, path) })
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
	for _, c := range d.Conditions {
		note(c.Place, string(c.Reason))
	}
	for _, f := range d.Failures {
		note("", "not examined by "+f.Provider)
	}
	pods := map[string]string{}
	for _, p := range d.Case.Places {
		pods[p.Path] = p.PodUID
	}
	now := illnesses{}
	for path, reasons := range found {
		now[path] = illness{pods[path], strings.Join(slices.Sorted(maps.Keys(reasons)), ",")}
	}
	return now
}

func looksAt(c healer.Case, path string) bool {
	return slices.ContainsFunc(c.Places, func(p healer.Place) bool { return p.Path == path })
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
