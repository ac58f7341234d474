package cluster

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"

	"github.com/csi-addons/node-healer/pkg/api/clustersettings"
	"github.com/csi-addons/node-healer/test/harness/kubetest"
)

// aDaemon is the ready pod of the DaemonSet storage/set.
func aDaemon(spec corev1.PodSpec) *corev1.Pod {
	controls := true
	spec.NodeName = kubetest.NodeName
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "storage", Name: "set-x", UID: "uid-of-set", CreationTimestamp: metav1.Now(),
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "DaemonSet", Name: "set", Controller: &controls}},
		},
		Spec:   spec,
		Status: corev1.PodStatus{Phase: corev1.PodRunning, Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}},
	}
	return p
}

func hostPaths(paths ...string) (s corev1.PodSpec) {
	for _, p := range paths {
		s.Volumes = append(s.Volumes, corev1.Volume{VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: p}}})
	}
	return s
}

func program(words ...string) corev1.PodSpec {
	return corev1.PodSpec{Containers: []corev1.Container{{Name: "driver"}, {Command: words[:1], Args: words[1:]}}}
}

func TestDriversOf(t *testing.T) {
	const plugins = "/var/lib/kubelet/plugins/"
	for name, tc := range map[string]struct {
		spec  corev1.PodSpec
		named map[string]string
		want  []string
	}{
		"no driver":                    {hostPaths("/var/log", "/"), nil, nil},
		"its directory":                {hostPaths(plugins + "a.example.com"), nil, []string{"a.example.com"}},
		"its directory, with a slash":  {hostPaths(plugins + "a.example.com/"), nil, []string{"a.example.com"}},
		"kubelet's other root":         {hostPaths("/data/kubelet/plugins/a.example.com"), nil, []string{"a.example.com"}},
		"another root than kubelet's":  {hostPaths("/data/plugins/a.example.com", "/plugins/a.example.com"), nil, nil},
		"kubelet's other directories":  {hostPaths("/var/lib/kubelet/a.example.com", "/var/lib/kubelet"), nil, nil},
		"directories of two drivers":   {hostPaths(plugins+"a.example.com", plugins+"b.example.com"), nil, []string{"a.example.com", "b.example.com"}},
		"all plugins":                  {hostPaths(plugins), nil, nil},
		"a directory in its directory": {hostPaths(plugins + "a.example.com/mounts"), nil, nil},
		"arguments that name it":       {program("/registrar", "--kubelet-registration-path="+plugins+"a.example.com/csi.sock"), nil, nil},
		"named by the settings":        {hostPaths("/var/log"), map[string]string{"a.example.com": "storage/set"}, []string{"a.example.com"}},
		"named for two drivers": {
			hostPaths(),
			map[string]string{"a.example.com": "storage/set", "b.example.com": "storage/set"},
			[]string{"a.example.com", "b.example.com"},
		},
		"another set is named":                 {hostPaths(plugins + "a.example.com"), map[string]string{"a.example.com": "storage/other"}, nil},
		"a set of another namespace is named":  {hostPaths(plugins + "a.example.com"), map[string]string{"a.example.com": "kube-system/set"}, nil},
		"another set is named for another one": {hostPaths(plugins + "a.example.com"), map[string]string{"b.example.com": "storage/other"}, []string{"a.example.com"}},
	} {
		c := &Cluster{cfg: Config{Node: &thisHost{t: t}}}
		s := settings{daemonSets: tc.named, driverNamespaces: []string{"storage"}}
		for _, driver := range []string{"a.example.com", "b.example.com", ""} {
			got, err := c.isOfDriver(t.Context(), s, aDaemon(tc.spec), driver)
			if err != nil || got != slices.Contains(tc.want, driver) {
				t.Errorf("%s: of %q: %t, %v", name, driver, got, err)
			}
		}
	}
}

// TestDriverIsAway follows one driver's pods through a rollout.
func TestDriverIsAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := kubetest.NewAPI()
		api.Put(kubetest.Node())
		c, end := following(t, api)
		defer end()
		c.cfg.DriverGrace = time.Minute
		pod := aDaemon(hostPaths("/var/lib/kubelet/plugins/" + kubetest.DriverName))
		pod.Namespace = metav1.NamespaceSystem
		put := func(status corev1.ConditionStatus) {
			pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: status, LastTransitionTime: metav1.Now()}}
			api.Put(pod.DeepCopy())
		}
		is := func(away bool) {
			t.Helper()
			synctest.Wait()
			if _, err := c.driverAway(t.Context(), kubetest.DriverName); (err != nil) != away {
				t.Errorf("away: %v", err)
			}
		}
		is(false) // it has no pod of a DaemonSet
		put(corev1.ConditionTrue)
		is(false)
		put(corev1.ConditionFalse)
		is(true)
		time.Sleep(59 * time.Second)
		is(true)
		time.Sleep(2 * time.Second)
		is(false)

		put(corev1.ConditionTrue)
		is(false)
		api.Remove(pod) // gone without having been not ready
		is(true)
		time.Sleep(59 * time.Second)
		is(true)
		pod.UID = "uid-of-next"
		put(corev1.ConditionTrue)
		is(false)
		api.Remove(pod)
		is(true)
		time.Sleep(time.Minute)
		is(false)
	})
}

// A terminating pod is not ready since its deletion, and not since its grace period ends.
func TestReadinessOfATerminatingPod(t *testing.T) {
	pod, now, grace := aDaemon(corev1.PodSpec{}), metav1.Now(), int64(30)
	pod.DeletionTimestamp, pod.DeletionGracePeriodSeconds = &metav1.Time{Time: now.Add(30 * time.Second)}, &grace
	if ready, since := readiness(pod); ready || !since.Equal(now.Time) {
		t.Errorf("ready: %t, since %s", ready, since)
	}
}

// TestDriverAway reads the current pods of the DaemonSet that counts.
func TestDriverAway(t *testing.T) {
	ready, sick := aDaemon(hostPaths("/var/lib/kubelet/plugins/"+kubetest.DriverName)), aDaemon(hostPaths("/var/lib/kubelet/plugins/"+kubetest.DriverName))
	sick.Status.Conditions = nil
	going := ready.DeepCopy()
	going.DeletionTimestamp = &metav1.Time{Time: time.Now()}
	second := sick.DeepCopy()
	second.Name, second.UID = "set-y", "uid-of-y"
	lonely := sick.DeepCopy()
	lonely.OwnerReferences = nil
	system := sick.DeepCopy()
	system.Namespace = metav1.NamespaceSystem
	storage := func(enforce string) *corev1.Namespace {
		return &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "storage", Labels: map[string]string{enforceLabel: enforce}}}
	}
	settings := func(key, text string) *corev1.ConfigMap { return theSettings(map[string]string{key: text}) }
	for name, tc := range map[string]struct {
		objects []kubetest.Object
		away    bool
	}{
		"no pod":                                  {nil, false},
		"ready":                                   {[]kubetest.Object{storage("privileged"), ready}, false},
		"not ready":                               {[]kubetest.Object{storage("privileged"), sick}, true},
		"terminating":                             {[]kubetest.Object{storage("privileged"), going}, true},
		"one of two":                              {[]kubetest.Object{storage("privileged"), ready, second}, false},
		"a pod of no DaemonSet":                   {[]kubetest.Object{storage("privileged"), lonely}, false},
		"in a namespace without a label":          {[]kubetest.Object{storage(""), sick}, false},
		"in a namespace for tenants":              {[]kubetest.Object{storage("baseline"), sick}, false},
		"in a namespace that is gone":             {[]kubetest.Object{sick}, false},
		"in kube-system":                          {[]kubetest.Object{system}, true},
		"a tenant's is not ready":                 {[]kubetest.Object{storage("restricted"), sick, ready}, false},
		"in a namespace that the settings name":   {[]kubetest.Object{sick, settings(clustersettings.DriverNamespaces, "[storage]")}, true},
		"in another one than the settings name":   {[]kubetest.Object{storage("privileged"), sick, settings(clustersettings.DriverNamespaces, "[other]")}, false},
		"in kube-system, and the settings do not": {[]kubetest.Object{system, settings(clustersettings.DriverNamespaces, "[]")}, false},
		"a set that is not named":                 {[]kubetest.Object{storage("privileged"), sick, settings(clustersettings.DriverDaemonSets, kubetest.DriverName+": storage/named")}, false},
		"a set that is named":                     {[]kubetest.Object{sick, settings(clustersettings.DriverDaemonSets, kubetest.DriverName+": storage/set")}, true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				api := kubetest.NewAPI()
				api.Put(kubetest.Node())
				for _, o := range tc.objects {
					api.Put(o)
				}
				c, end := following(t, api)
				defer end()
				_, err := c.driverAway(t.Context(), kubetest.DriverName)
				if (err != nil) != tc.away || err != nil && !strings.Contains(err.Error(), kubetest.DriverName) {
					t.Errorf("got %v", err)
				}
			})
		})
	}
}

// TestDriverOfAnUnknownNamespace: nothing is healed while it is unknown whether the
// driver is away.
func TestDriverOfAnUnknownNamespace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := kubetest.NewAPI()
		api.Put(kubetest.Node(), aDaemon(hostPaths("/var/lib/kubelet/plugins/"+kubetest.DriverName)))
		api.BreakFor(kubetest.ErrNoAnswer, "get", "namespaces")
		c, end := following(t, api)
		defer end()
		_, err := c.driverAway(t.Context(), kubetest.DriverName)
		expect(t, "its namespace", err, "what the cluster wants is not known")
		_, err = c.driverAway(t.Context(), "another.example.com")
		expect(t, "another driver's", err, "")
	})
}

// The pods of DaemonSets that come and go fill no memory.
func TestGonePodsAreForgotten(t *testing.T) {
	c := clusterOf(t, kubetest.NewAPI())
	for i := range 1000 {
		pod := aDaemon(corev1.PodSpec{})
		pod.UID = types.UID(fmt.Sprint("gone", i))
		c.podDeleted(cache.DeletedFinalStateUnknown{Obj: pod})
	}
	if n := len(c.gone.Keys()); n != maxGone {
		t.Errorf("%d are remembered", n)
	}
}

// TestDriverDuringAnOutage: the namespace of a driver's pod is known before the API is away.
func TestDriverDuringAnOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := kubetest.NewAPI()
		api.Put(kubetest.Node(), aDaemon(hostPaths("/var/lib/kubelet/plugins/"+kubetest.DriverName)),
			&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "storage", Labels: map[string]string{enforceLabel: enforcePrivileged}}})
		c, end := following(t, api)
		defer end()
		synctest.Wait()
		api.Break(kubetest.ErrNoAnswer)
		_, err := c.driverAway(t.Context(), kubetest.DriverName)
		expect(t, "a ready pod", err, "")
	})
}
