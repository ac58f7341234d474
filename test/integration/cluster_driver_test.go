package integration

import (
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/csi-addons/node-healer/test/harness"
	"github.com/csi-addons/node-healer/test/harness/cluster"
)

// daemon makes a DaemonSet and its ready pod on this node.
func (m *member) daemon(name string, spec ...func(*corev1.PodSpec)) *corev1.Pod {
	m.T.Helper()
	set := cluster.DaemonSet(m.namespace, name)
	for _, change := range spec {
		change(&set.Spec.Template.Spec)
	}
	return cluster.Create(m.T, m.api, cluster.PodOf(cluster.Create(m.T, m.api, set), thisNode))
}

// mounts has the pods mount a directory of the host's.
func mounts(dir string) func(*corev1.PodSpec) {
	return func(s *corev1.PodSpec) {
		s.Volumes = append(s.Volumes, corev1.Volume{
			Name: "plugin", VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: dir}},
		})
	}
}

// runs has the pods run a program beside what they run.
func runs(command ...string) func(*corev1.PodSpec) {
	return func(s *corev1.PodSpec) {
		s.Containers = append(s.Containers, corev1.Container{
			Name: "registrar", Image: "registry.example.com/registrar", Command: command[:1], Args: command[1:],
		})
	}
}

const (
	pluginDir = "/var/lib/kubelet/plugins/" + harness.Driver
	socketArg = "--kubelet-registration-path=" + pluginDir + "/csi.sock"
)

// Ready says whether the pod is.
func (m *member) Ready(pod *corev1.Pod, is bool) {
	m.T.Helper()
	cluster.Change(m.T, m.api, pod, func(p *corev1.Pod) { cluster.Ready(p, is) })
}

// Again makes a pod anew that is gone.
func (m *member) Again(pod *corev1.Pod) *corev1.Pod {
	m.T.Helper()
	again := pod.DeepCopy()
	again.ResourceVersion, again.UID, again.DeletionTimestamp, again.DeletionGracePeriodSeconds = "", "", nil, nil
	cluster.Ready(again, true)
	return cluster.Create(m.T, m.api, again)
}

// Waits waits until heals wait for the driver.
func (v ruled) Waits() {
	v.m.T.Helper()
	v.Refused("the pod of driver "+harness.Driver+" on this node has not been ready for ", "--driver-grace")
}

// TestDriverAway heals nothing while the driver's own pod on this node is not
// ready, terminating or gone, however it is known to be the driver's.
func TestDriverAway(t *testing.T) {
	for name, c := range map[string]struct {
		spec func(*corev1.PodSpec)
		// named is true when the settings name the DaemonSet.
		named bool
	}{
		"its directory is mounted":               {spec: mounts(pluginDir)},
		"its directory is mounted, with a slash": {spec: mounts(pluginDir + "/")},
		"kubelet has another root":               {spec: mounts("/data/kubelet/plugins/" + harness.Driver)},
		"the settings say so":                    {spec: mounts("/var/lib/kubelet/plugins/otherwise"), named: true},
	} {
		t.Run(name, func(t *testing.T) {
			m := newMember(t)
			m.Start()
			v := m.ruled("waiting")
			if c.named {
				m.Settings(map[string]string{"driver-daemonsets": harness.Driver + ": " + m.namespace + "/driver"})
			}
			pod := m.daemon("driver", c.spec)
			v.Heals()
			m.Ready(pod, false)
			v.Waits()
			m.Ready(pod, true)
			v.Heals()
			cluster.Terminate(t, m.api, pod)
			v.Waits()
			cluster.Delete(t, m.api, pod)
			v.Waits()
			m.Again(pod)
			v.Heals()
		})
	}
}

// TestArgumentsAreNoDriver heals although a DaemonSet's pod that is not ready names
// the driver's socket: anybody may write that into the arguments of a pod.
func TestArgumentsAreNoDriver(t *testing.T) {
	m := newMember(t)
	m.Start()
	v := m.ruled("goes-on")
	m.Ready(m.daemon("driver", runs("/registrar", "-v=5", socketArg)), false)
	v.Heals()
}

// TestDriverRollsOut heals as soon as one of two pods of the driver is ready.
func TestDriverRollsOut(t *testing.T) {
	m := newMember(t)
	m.Start()
	v := m.ruled("rolled")
	old := m.daemon("driver", mounts(pluginDir))
	v.Heals()
	cluster.Terminate(t, m.api, old)
	v.Waits()
	next := old.DeepCopy()
	next.Name += "-next"
	next = m.Again(next)
	v.Heals()
	m.Ready(next, false)
	v.Waits()
	m.Ready(next, true)
	v.Heals()
}

// TestOtherPodsThanTheDrivers heals whatever becomes of pods that are none of the
// driver's. What the server hears of pods it hears in their order: it knows of
// the other one by the time it knows of the driver's.
func TestOtherPodsThanTheDrivers(t *testing.T) {
	m := newMember(t)
	m.Start()
	v := m.ruled("other")
	drivers := m.daemon("driver", mounts(pluginDir))
	known := func() {
		t.Helper()
		m.Ready(drivers, false)
		v.Waits()
		m.Ready(drivers, true)
		v.Heals()
	}
	lonely := cluster.Pod(m.namespace, "lonely", thisNode)
	mounts(pluginDir)(&lonely.Spec)
	for name, other := range map[string]*corev1.Pod{
		"another driver's":           m.daemon("another", mounts("/var/lib/kubelet/plugins/another.example.com")),
		"one of all plugins":         m.daemon("monitor", mounts("/var/lib/kubelet/plugins")),
		"one of no driver":           m.daemon("logs", mounts("/var/log")),
		"one that no DaemonSet made": cluster.Create(t, m.api, lonely),
	} {
		t.Run(name, func(*testing.T) {
			m.Ready(other, false)
			known()
			cluster.Terminate(t, m.api, other)
			known()
			cluster.Delete(t, m.api, other)
			known()
		})
	}
}

// TestDriverGrace waits no longer than it was told to.
func TestDriverGrace(t *testing.T) {
	m := newMember(t)
	usual := m.Args
	m.Args = append(usual, "--driver-grace=1h")
	m.Start()
	v := m.ruled("patient")
	pod := m.daemon("driver", mounts(pluginDir))
	m.Ready(pod, false)
	v.Waits()
	for _, grace := range []string{"0s", "1s"} {
		m.Stop()
		m.Args = append(usual, "--driver-grace="+grace)
		m.Start()
		v.Heals()
	}
}
