package cluster

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/csi-addons/node-healer/pkg/api/volumehealth"
	"github.com/csi-addons/node-healer/pkg/healer"
)

// asked returns a report of volume "v" that checked the mount points of these pods and
// the staging mount point: what is wrong where, by a pod's name or "staging".
func asked(pods string, wrong map[string]healer.Reason) healer.Report {
	d := healer.Diagnosis{Case: healer.Case{MountPoints: []healer.MountPoint{{Role: healer.RoleStaging, Path: "/staged"}}}}
	for pod := range strings.FieldsSeq(pods) {
		d.Case.MountPoints = append(d.Case.MountPoints, healer.MountPoint{Role: healer.RoleTarget, Path: "/" + pod, PodUID: pod})
	}
	for at, reason := range wrong {
		d.Conditions = append(d.Conditions, healer.Condition{MountPoint: "/" + at, Reason: reason})
	}
	return of("v", d, d)
}

type wrong = map[string]healer.Reason

var checkedInTurn = map[string]struct {
	reports []healer.Report
	// gone is a pod that is not here at the last report.
	gone    string
	events  string
	healthy bool
}{
	"one of two is healthy": {
		reports: []healer.Report{asked("a", wrong{"a": healer.NotMounted}), asked("b", nil), asked("a", wrong{"a": healer.NotMounted}), asked("b", nil)},
		events:  "VolumeAbnormal",
	},
	"both are abnormal, and differ": {
		reports: []healer.Report{
			asked("a", wrong{"a": healer.NotMounted}), asked("b", wrong{"b": healer.StackedMounts}),
			asked("a", wrong{"a": healer.NotMounted}), asked("b", wrong{"b": healer.StackedMounts}),
		},
		events: "VolumeAbnormal VolumeAbnormal",
	},
	"one after the other is healthy": {
		reports: []healer.Report{
			asked("a b", wrong{"a": healer.NotMounted, "b": healer.StackedMounts}),
			asked("a", nil), asked("b", wrong{"b": healer.StackedMounts}), asked("b", nil),
		},
		events:  "VolumeAbnormal VolumeHealthy",
		healthy: true,
	},
	"a look at both": {
		reports: []healer.Report{asked("a", wrong{"a": healer.NotMounted}), asked("a b", nil)},
		events:  "VolumeAbnormal VolumeHealthy",
		healthy: true,
	},
	"its pod is gone": {
		reports: []healer.Report{asked("a", wrong{"a": healer.NotMounted}), asked("b", nil), asked("b", nil)},
		gone:    "a",
		events:  "VolumeAbnormal VolumeHealthy",
		healthy: true,
	},
	"another's pod is gone": {
		reports: []healer.Report{asked("a", wrong{"a": healer.NotMounted}), asked("b", nil), asked("b", nil)},
		gone:    "c",
		events:  "VolumeAbnormal",
	},
	"the staged one is seen by all": {
		reports: []healer.Report{asked("a", wrong{"staging": healer.IOError}), asked("b", nil)},
		events:  "VolumeAbnormal VolumeHealthy",
		healthy: true,
	},
	"a provider failed": {
		reports: []healer.Report{of("v", healer.Diagnosis{}, healer.Diagnosis{Failures: []healer.ProviderFailure{{Provider: "p"}}}), asked("b", nil)},
		events:  "VolumeAbnormal VolumeHealthy",
		healthy: true,
	},
	"refused, each for its own reason": {
		reports: []healer.Report{refusedAt("a", "drained"), refusedAt("b", "held"), refusedAt("a", "drained"), refusedAt("b", "held")},
		events:  "VolumeAbnormal VolumeHealRefused VolumeHealRefused",
	},
	"one is healed": {
		reports: []healer.Report{asked("a b", wrong{"a": healer.NotMounted, "b": healer.NotMounted}), healedAt("a"), asked("a", nil)},
		events:  "VolumeAbnormal VolumeHealed",
	},
}

// A volume is checked at one mount point and at another in turn.
func TestMountPointsCheckedInTurn(t *testing.T) {
	for name, tt := range checkedInTurn {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				api, known := oneVolume(t)
				pods := dataOf("data")
				for _, uid := range []types.UID{"a", "b"} {
					pods.pods = append(pods.pods, corev1.ObjectReference{Kind: "Pod", Namespace: "app", Name: "pod-" + string(uid), UID: uid})
				}
				known.Store("v", pods)
				r, end := reporting(t, api, known)
				defer end()
				for i, report := range tt.reports {
					if i == len(tt.reports)-1 {
						pods.pods = slices.DeleteFunc(slices.Clone(pods.pods), func(p corev1.ObjectReference) bool { return string(p.UID) == tt.gone })
						known.Store("v", pods)
					}
					r.note(report, words(fmt.Sprint("text ", i)))
					time.Sleep(time.Second)
				}
				var events []string
				for _, said := range api.said("data") {
					events = append(events, strings.Fields(said)[0])
				}
				if got := strings.Join(events, " "); got != tt.events {
					t.Errorf("events: %q, want %q", got, tt.events)
				}
				if got := health(t, api, "data"); strings.Contains(got, volumehealth.Unhealthy) == tt.healthy {
					t.Errorf("the claim says %s", got)
				}
			})
		})
	}
}

func refusedAt(pod, why string) healer.Report {
	r := asked(pod, wrong{pod: healer.NotMounted})
	r.Refused = []healer.Refusal{{Step: "rebind", MountPoint: "/" + pod, Why: why}}
	return r
}

func healedAt(pod string) healer.Report {
	r := asked(pod, nil)
	r.Before.Conditions = []healer.Condition{{MountPoint: "/" + pod, Reason: healer.NotMounted}}
	r.Steps = []healer.Outcome{{Step: "rebind", MountPoint: "/" + pod}}
	return r
}

// However many pods use a volume, what is remembered of it is bounded, and it becomes
// healthy again.
func TestConditionsAreBounded(t *testing.T) {
	all := func(string) bool { return true }
	var conditions volumeConditions
	for i := range 3 * maxConditions {
		conditions = conditions.after(asked(fmt.Sprint("pod-", i), wrong{fmt.Sprint("pod-", i): healer.NotMounted}), all)
	}
	many := wrong{}
	for i := range 3 * maxConditions {
		many[fmt.Sprint("pod-", i)] = healer.NotMounted
	}
	conditions = conditions.after(asked("", many), all)
	if len(conditions) > maxConditions+1 || len(conditions) < maxConditions {
		t.Errorf("%d are remembered", len(conditions))
	}
	if conditions = conditions.after(asked(strings.Join(slices.Collect(maps.Keys(many)), " "), nil), all); len(conditions) != 0 {
		t.Errorf("still conditions: %v", conditions)
	}
}
