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
				saidToRun(job)
				v.pod = cluster.Create(t, v.m.api, job)
				v.Publish(string(v.pod.UID))
				v.m.Expect("healthy", v.Request())
				v.Lose()
			},
			"only a running container shows that it has not ended",
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

// saidToRun has the API say that a container of a pod runs.
func saidToRun(p *corev1.Pod) {
	p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "app", State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}}
}

// runsAnother starts a container of another pod of the API, which shows that a pod's processes can be seen.
func (m *member) runsAnother() {
	m.T.Helper()
	another := cluster.Create(m.T, m.api, cluster.Pod(m.namespace, "another", thisNode))
	m.StartContainer(harness.ContainerSpec{Pod: string(another.UID)})
}

// TestWantedByWhatRuns heals for any running container of a pod that may end by itself, as no volume is
// unpublished while one runs, and not for a pod that runs only by the API's word: kubelet evicted it.
func TestWantedByWhatRuns(t *testing.T) {
	m := newMember(t)
	m.Start()
	m.runsAnother()
	v := m.lost("evicted")
	cluster.Change(t, m.api, v.pod, saidToRun)
	before := m.Table()
	m.Expect("abnormal", v.Request(), "Refused: rebind", "has no process here any more")
	m.SameTable(before)
	// What waits for its next start has no process with CRI-O, which is taken to be the runtime while no pod has pause.
	cluster.Change(t, m.api, v.pod, func(p *corev1.Pod) {
		p.Status.ContainerStatuses[0].RestartCount = 1
		p.Status.ContainerStatuses[0].State = corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "CrashLoopBackOff"}}
	})
	m.Expect("healed", v.Request())

	v.Lose()
	cluster.Delete(t, m.api, v.pod)
	job := v.pod.DeepCopy()
	job.ResourceVersion, job.UID, job.Spec.RestartPolicy = "", "", corev1.RestartPolicyNever
	saidToRun(job)
	v.pod = cluster.Create(t, m.api, job)
	v.Publish(string(v.pod.UID))
	c := m.StartUserContainer(harness.ContainerSpec{Pod: string(v.pod.UID)})
	m.Expect("healthy", v.Request())
	v.Lose()
	m.Expect("healed", v.Request())
	v.Lose()
	c.Kill()
	before = m.Table()
	m.Expect("abnormal", v.Request(), "only a running container shows that it has not ended")
	m.SameTable(before)
}

// TestPodThatStartsToTerminate is the race that deletes data: a pod terminates, or is evicted, during
// a step. The new mount never becomes writable, and a driver that has unmounted
// before, and now only deletes, deletes nothing of the volume.
func TestPodThatStartsToTerminate(t *testing.T) {
	for why, ends := range map[string]func(*claimed, *harness.Container){
		"is terminating":               func(v *claimed, _ *harness.Container) { cluster.Terminate(v.m.T, v.m.api, v.pod) },
		"has no process here any more": func(_ *claimed, app *harness.Container) { app.Kill() },
	} {
		t.Run(why, func(t *testing.T) { podThatEnds(t, why, ends) })
	}
}

func podThatEnds(t *testing.T, why string, ends func(*claimed, *harness.Container)) {
	t.Helper()
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
			cluster.Change(t, m.api, v.pod, saidToRun)
			app := m.StartContainer(harness.ContainerSpec{Pod: string(v.pod.UID)})
			m.runsAnother()
			m.Expect("healthy", v.Request())
			sum := v.Sum(v.Staging)
			v.Lose()
			call := m.BeginAndStop(v.Request())
			ends(v, app)
			call.Resume()
			a := call.LetGo()
			if strings.Contains(a.GetMessage(), why) {
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
		t.Errorf("no answer says that the pod %s, as %s", why, unnamed)
	}
}
