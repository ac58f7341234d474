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

	"github.com/csi-addons/node-healer/pkg/api/clustersettings"
	"github.com/csi-addons/node-healer/test/harness/kubetest"
)

// aDaemon is the ready pod of the DaemonSet storage/set.
func aDaemon(spec corev1.PodSpec) *corev1.Pod {
	controls := true
	spec.NodeName = kubetest.NodeName
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "storage", Name: "set-x", UID: "uid-of-set",
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "DaemonSet", Name: "set", Controller: &controls}},
		},
		Spec:   spec,
		Status: corev1.PodStatus{Phase: corev1.PodRunning, Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}},
	}
	return p
}

// driverNamespace is that of aDaemon, which no tenant can create pods in.
func driverNamespace() *corev1.Namespace {
	return &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "storage", Labels: map[string]string{enforceLabel: enforcePrivileged}}}
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
		got := c.driversOf(aDaemon(tc.spec), tc.named, func(string, string) bool { return true })
		slices.Sort(got)
		if got = slices.Compact(got); !slices.Equal(got, tc.want) {
			t.Errorf("%s: %q, want %q", name, got, tc.want)
		}
	}
}

// TestDriverIsAway follows one driver's pods through a rollout.
func TestDriverIsAway(t *testing.T) {
	d := drivers{seen: map[string]driverPods{}}
	start := time.Now()
	is := func(away bool, grace time.Duration) {
		t.Helper()
		if err := d.waitsFor(kubetest.DriverName, grace); (err != nil) != away {
			t.Errorf("away: %v", err)
		}
	}
	is(false, time.Hour) // never seen: it has no pod of a DaemonSet
	d.record(map[string]bool{kubetest.DriverName: true, "another.example.com": false}, start)
	is(false, time.Hour)
	d.record(map[string]bool{kubetest.DriverName: false, "another.example.com": true}, start)
	is(true, time.Hour)
	is(false, 0)
	d.record(map[string]bool{}, start) // gone
	is(true, time.Hour)
	d.record(map[string]bool{kubetest.DriverName: true}, start)
	is(false, time.Hour)

	d.record(map[string]bool{}, start) // gone without having been not ready
	is(true, time.Hour)
	d.record(map[string]bool{kubetest.DriverName: true}, start)
	is(false, time.Hour)

	// The first time that it was not ready counts, not the last.
	d.record(map[string]bool{kubetest.DriverName: false}, start.Add(-time.Minute))
	d.record(map[string]bool{kubetest.DriverName: false}, start)
	d.record(map[string]bool{}, start)
	is(true, time.Hour)
	is(false, 59*time.Second)
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
				_, err := c.driverAway(t.Context(), kubetest.DriverName, true)
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
		_, err := c.driverAway(t.Context(), kubetest.DriverName, true)
		expect(t, "its namespace", err, "what the cluster wants is not known")
		_, err = c.driverAway(t.Context(), "another.example.com", true)
		expect(t, "another driver's", err, "")
	})
}

// A driver without pods here is forgotten, and one that is ready is not.
func TestDriversAreForgotten(t *testing.T) {
	d := drivers{seen: map[string]driverPods{}}
	start := time.Now()
	for i := range 1000 {
		d.record(map[string]bool{kubetest.DriverName: true, fmt.Sprint("gone", i): i%2 == 0}, start.Add(time.Duration(i)*time.Second))
	}
	d.record(map[string]bool{kubetest.DriverName: true}, start.Add(forgetDriver+time.Hour))
	if n := len(d.seen); n != 1 {
		t.Errorf("%d are remembered", n)
	}
	d.record(map[string]bool{}, time.Now())
	if d.waitsFor(kubetest.DriverName, time.Hour) == nil {
		t.Error("the driver that was ready is forgotten")
	}
}
