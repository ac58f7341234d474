package integration

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/csi-addons/node-healer/test/harness"
	"github.com/csi-addons/node-healer/test/harness/cluster"
)

// TestNotWantedByThePod changes nothing where the pod no longer wants the volume, each
// time beside a pod that does.
func TestNotWantedByThePod(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(t *testing.T, v *claimed)
		why    string
	}{
		"terminating": {
			func(t *testing.T, v *claimed) { cluster.Terminate(t, v.m.api, v.pod) },
			"is terminating",
		},
		"ended": {
			func(t *testing.T, v *claimed) {
				cluster.Change(t, v.m.api, v.pod, func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded })
			},
			"ended",
		},
		"may have ended": {
			func(t *testing.T, v *claimed) {
				cluster.Delete(t, v.m.api, v.pod)
				job := v.pod.DeepCopy()
				job.ResourceVersion, job.UID, job.Spec.RestartPolicy = "", "", corev1.RestartPolicyNever
				v.pod = cluster.Create(t, v.m.api, job)
				v.Publish(string(v.pod.UID))
				v.m.Expect("healthy", v.Request())
				v.Lose()
			},
			"only a running one shows that it has not ended",
		},
		"gone": {
			func(t *testing.T, v *claimed) { cluster.Delete(t, v.m.api, v.pod) },
			"",
		},
		"another claim of that name": {
			func(t *testing.T, v *claimed) {
				cluster.Delete(t, v.m.api, v.claim)
				again := v.claim.DeepCopy()
				again.ResourceVersion, again.UID, again.Spec.VolumeName = "", "", "another"
				cluster.Create(t, v.m.api, again)
			},
			"does not list the volume",
		},
		"the volume's object is gone": {
			func(t *testing.T, v *claimed) { cluster.Delete(t, v.m.api, v.pv) },
			"does not list the volume",
		},
	} {
		t.Run(name, func(t *testing.T) {
			m := newMember(t)
			m.Start()
			neighbour := m.lost("neighbour")
			v := m.lost("unwanted")
			tc.change(t, v)
			before := m.Table()
			// The informer may need a moment: the API itself is asked.
			m.Expect("abnormal", v.Request(), "Refused: rebind", tc.why)
			m.SameTable(before)
			m.Expect("healed", neighbour.Request())
		})
	}
}

// TestWantedByAContainer heals for a running container, whatever the state of its pod:
// kubelet does not unpublish while it runs.
func TestWantedByAContainer(t *testing.T) {
	m := newMember(t)
	m.Start()
	v := m.newClaimed("ext4", "held")
	m.Expect("healthy", v.Request())
	before := m.Table()
	c := m.NewContainer(string(v.pod.UID), v.MountPoint())
	cluster.Terminate(t, m.api, v.pod)
	v.Lose()
	m.Expect("healed", v.Request())
	m.SameTable(before)

	v.Lose()
	c.Kill()
	unmounted := m.Table()
	m.Expect("abnormal", v.Request(), "is terminating")
	m.SameTable(unmounted)
}

// TestPodThatStartsToTerminate is the race that deletes data: a pod terminates during
// a step. The new mount never becomes writable, and a driver that has unmounted
// before, and now only deletes, deletes nothing of the volume.
func TestPodThatStartsToTerminate(t *testing.T) {
	named, unnamed := false, ""
	for _, instant := range instants {
		if !strings.HasPrefix(instant, "rebind/") {
			continue // it is asked for the last time right before finalize
		}
		t.Run(instant, func(t *testing.T) {
			m := newMember(t)
			m.Pause = instant
			m.Start()
			v := m.newClaimed("ext4", "race")
			m.Expect("healthy", v.Request())
			sum := v.Sum(v.Staging)
			v.Lose()
			call := m.BeginAndStop(v.Request())
			cluster.Terminate(t, m.api, v.pod)
			call.Resume()
			a := call.LetGo()
			if strings.Contains(a.GetMessage(), "is terminating") {
				named = true
			} else if unnamed = a.GetMessage(); !m.IsTransient(unnamed) {
				t.Errorf("got %v, %v\n%s", a, call.Err(), m.Log)
			}
			if !a.GetAbnormal() {
				t.Errorf("got %v, %v", a, call.Err())
			}
			_ = removeAll(v.MountPoint())
			if v.Sum(v.Staging) != sum {
				t.Fatal("the volume lost data")
			}
			harness.Eventually(t, "kubelet's next tries succeed", func() bool {
				return unpublishers["umount, delete the tree"](v.MountPoint()) == nil
			})
			if v.Sum(v.Staging) != sum {
				t.Fatal("the volume lost data")
			}
		})
	}
	if !named && unnamed != "" {
		t.Errorf("no answer says that the pod is terminating, as %s", unnamed)
	}
}
