package integration

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

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

// pluginDir is the driver's directory.
func (m *member) pluginDir() string { return m.Kubelet + "/plugins/" + harness.Driver }

// Enforces says which pods may be made in the members' namespace.
func (m *member) Enforces(level string) {
	m.T.Helper()
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: m.namespace}}
	cluster.Change(m.T, m.api, namespace, func(n *corev1.Namespace) { n.Labels = map[string]string{"pod-security.kubernetes.io/enforce": level} })
}

// Ready says whether the pod is.
func (m *member) Ready(pod *corev1.Pod, is bool) {
	m.T.Helper()
	cluster.Change(m.T, m.api, pod, func(p *corev1.Pod) { cluster.Ready(p, is) })
}

// Again makes a pod that is gone once more.
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

// TestHealsWaitForTheDriversPod heals nothing while the driver's own pod on this node
// is not ready, terminating or missing, by whichever rule it is recognised.
func TestHealsWaitForTheDriversPod(t *testing.T) {
	for name, c := range map[string]struct {
		// dir is what the pod mounts, beneath kubelet's root.
		dir      string
		enforces string
		settings map[string]string // with the namespace for %s
	}{
		"its directory is mounted":               {dir: "/plugins/" + harness.Driver, enforces: "privileged"},
		"its directory is mounted, with a slash": {dir: "/plugins/" + harness.Driver + "/", enforces: "privileged"},
		"the settings name its namespace": {
			dir: "/plugins/" + harness.Driver, settings: map[string]string{"driver-namespaces": "[storage, %s]"},
		},
		"the settings name it": {
			dir: "/plugins/otherwise", settings: map[string]string{"driver-daemonsets": harness.Driver + ": %s/driver"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			m := newMember(t)
			if c.enforces != "" {
				m.Enforces(c.enforces)
			}
			m.Start()
			v := m.ruled("waiting")
			for key, text := range c.settings {
				m.Settings(map[string]string{key: fmt.Sprintf(text, m.namespace)})
			}
			pod := m.daemon("driver", mounts(m.Kubelet+c.dir))
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

// TestTenantsAreNoDrivers heals although an unready pod of a tenant's DaemonSet claims
// to be the driver's. The driver's own pod is created after it.
func TestTenantsAreNoDrivers(t *testing.T) {
	for name, c := range map[string]struct {
		enforces string
		spec     func(*member) func(*corev1.PodSpec)
		settings map[string]string
	}{
		"its arguments name the socket": {
			enforces: "privileged",
			spec: func(m *member) func(*corev1.PodSpec) {
				return runs("/registrar", "-v=5", "--kubelet-registration-path="+m.pluginDir()+"/csi.sock")
			},
		},
		"in a namespace without a label": {spec: func(m *member) func(*corev1.PodSpec) { return mounts(m.pluginDir()) }},
		"in another one than the settings": {
			enforces: "privileged", settings: map[string]string{"driver-namespaces": "[kube-system]"},
			spec: func(m *member) func(*corev1.PodSpec) { return mounts(m.pluginDir()) },
		},
		"beneath another root": {enforces: "privileged", spec: func(*member) func(*corev1.PodSpec) { return mounts("/data/kubelet/plugins/" + harness.Driver) }},
		"below its directory":  {enforces: "privileged", spec: func(m *member) func(*corev1.PodSpec) { return mounts(m.pluginDir() + "/sub") }},
	} {
		t.Run(name, func(t *testing.T) {
			m := newMember(t)
			if c.enforces != "" {
				m.Enforces(c.enforces)
			}
			if c.settings != nil {
				m.Settings(c.settings)
			}
			m.Start()
			v := m.ruled("goes-on")
			m.Ready(m.daemon("tenants", c.spec(m)), false)
			m.forgets() // its first list has that pod
			v.Heals()
		})
	}
}

// TestDriverRollsOut heals as soon as one of two pods of the driver is ready.
func TestDriverRollsOut(t *testing.T) {
	m := newMember(t)
	m.Enforces("privileged")
	m.Start()
	v := m.ruled("rolled")
	old := m.daemon("driver", mounts(m.pluginDir()))
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

// TestDriverGrace waits no longer than --driver-grace.
func TestDriverGrace(t *testing.T) {
	m := newMember(t)
	m.Enforces("privileged")
	usual := m.Args
	m.Args = append(usual, "--driver-grace=1h")
	m.Start()
	v := m.ruled("patient")
	pod := m.daemon("driver", mounts(m.pluginDir()))
	m.Ready(pod, false)
	v.Waits()
	for _, grace := range []string{"0s", "1s"} {
		m.Stop()
		m.Args = append(usual, "--driver-grace="+grace)
		m.Start()
		v.Heals()
	}
}
