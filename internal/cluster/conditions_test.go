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

// A volume is checked at one mount point and at another in turn.
func TestMountPointsCheckedInTurn(t *testing.T) {
	tests := map[string]struct {
		reports []healer.Report
		// gone is a pod that is not here at the last report.
		gone    string
		events  string
		healthy bool
	}{
		"one of two is healthy": {
			[]healer.Report{asked("a", wrong{"a": healer.NotMounted}), asked("b", nil), asked("a", wrong{"a": healer.NotMounted}), asked("b", nil)},
			"", "VolumeAbnormal", false,
		},
		"both are abnormal, and differ": {
			[]healer.Report{
				asked("a", wrong{"a": healer.NotMounted}), asked("b", wrong{"b": healer.StackedMounts}),
				asked("a", wrong{"a": healer.NotMounted}), asked("b", wrong{"b": healer.StackedMounts}),
			},
			"", "VolumeAbnormal VolumeAbnormal", false,
		},
		"one after the other is healthy": {
			[]healer.Report{
				asked("a b", wrong{"a": healer.NotMounted, "b": healer.StackedMounts}),
				asked("a", nil), asked("b", wrong{"b": healer.StackedMounts}), asked("b", nil),
			},
			"", "VolumeAbnormal VolumeHealthy", true,
		},
		"a look at both": {
			[]healer.Report{asked("a", wrong{"a": healer.NotMounted}), asked("a b", nil)},
			"", "VolumeAbnormal VolumeHealthy", true,
		},
		"its pod is gone": {
			[]healer.Report{asked("a", wrong{"a": healer.NotMounted}), asked("b", nil), asked("b", nil)},
			"a", "VolumeAbnormal VolumeHealthy", true,
		},
		"another's pod is gone": {
			[]healer.Report{asked("a", wrong{"a": healer.NotMounted}), asked("b", nil), asked("b", nil)},
			"c", "VolumeAbnormal", false,
		},
		"the staged one is seen by all": {
			[]healer.Report{asked("a", wrong{"staging": healer.IOError}), asked("b", nil)},
			"", "VolumeAbnormal VolumeHealthy", true,
		},
		"a provider failed": {
			[]healer.Report{of("v", healer.Diagnosis{}, healer.Diagnosis{Failures: []healer.ProviderFailure{{Provider: "p"}}}), asked("b", nil)},
			"", "VolumeAbnormal VolumeHealthy", true,
		},
		"refused, each for its own reason": {
			[]healer.Report{refusedAt("a", "drained"), refusedAt("b", "held"), refusedAt("a", "drained"), refusedAt("b", "held")},
			"", "VolumeAbnormal VolumeHealRefused VolumeHealRefused", false,
		},
		"one is healed": {
			[]healer.Report{asked("a b", wrong{"a": healer.NotMounted, "b": healer.NotMounted}), healedAt("a"), asked("a", nil)},
			"", "VolumeAbnormal VolumeHealed", false,
		},
	}
	for name, tt := range tests {
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
