package kube

import (
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// aDaemon is the ready pod of the DaemonSet storage/set, as the informer keeps it.
func aDaemon(spec corev1.PodSpec) *corev1.Pod {
	controls := true
	spec.NodeName = nodeName
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "storage", Name: "set-x", UID: "uid-of-set",
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "DaemonSet", Name: "set", Controller: &controls}},
		},
		Spec:   spec,
		Status: corev1.PodStatus{Phase: corev1.PodRunning, Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}},
	}
	stripPod(p)
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
		got := driversOf(aDaemon(tc.spec), tc.named, []string{kubeletRoot, "/data/kubelet"}, func(string, string) bool { return true })
		slices.Sort(got)
		if got = slices.Compact(got); !slices.Equal(got, tc.want) {
			t.Errorf("%s: %q, want %q", name, got, tc.want)
		}
	}
}

// TestDriverIsAway follows one driver's pods through a rollout.
func TestDriverIsAway(t *testing.T) {
	var d drivers
	start := time.Now()
	is := func(away bool, grace time.Duration) {
		t.Helper()
		if err := d.away(driverName, grace); (err != nil) != away {
			t.Errorf("away: %v", err)
		}
	}
	is(false, time.Hour) // nobody has seen it: it has no pod of a DaemonSet
	d.note(map[string]bool{driverName: true, "another.example.com": false}, start)
	is(false, time.Hour)
	d.note(map[string]bool{driverName: false, "another.example.com": true}, start)
	is(true, time.Hour)
	is(false, 0)
	d.note(map[string]bool{}, start) // gone
	is(true, time.Hour)
	d.note(map[string]bool{driverName: true}, start)
	is(false, time.Hour)

	d.note(map[string]bool{}, start) // gone without a word
	is(true, time.Hour)
	d.note(map[string]bool{driverName: true}, start)
	is(false, time.Hour)

	// It is the first moment that counts, not the last word of it.
	d.note(map[string]bool{driverName: false}, start.Add(-time.Minute))
	d.note(map[string]bool{driverName: false}, start)
	d.note(map[string]bool{}, start)
	is(true, time.Hour)
	is(false, 59*time.Second)
}

// TestDriverAway looks at the pods as they are now, of the DaemonSet that counts.
func TestDriverAway(t *testing.T) {
	ready, sick := aDaemon(hostPaths("/var/lib/kubelet/plugins/"+driverName)), aDaemon(hostPaths("/var/lib/kubelet/plugins/"+driverName))
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
		objects []apiObject
		away    bool
	}{
		"no pod":                                  {nil, false},
		"ready":                                   {[]apiObject{storage("privileged"), ready}, false},
		"not ready":                               {[]apiObject{storage("privileged"), sick}, true},
		"terminating":                             {[]apiObject{storage("privileged"), going}, true},
		"one of two":                              {[]apiObject{storage("privileged"), ready, second}, false},
		"a pod of no DaemonSet":                   {[]apiObject{storage("privileged"), lonely}, false},
		"in a namespace without a label":          {[]apiObject{storage(""), sick}, false},
		"in a namespace for tenants":              {[]apiObject{storage("baseline"), sick}, false},
		"in a namespace that is gone":             {[]apiObject{sick}, false},
		"in kube-system":                          {[]apiObject{system}, true},
		"a tenant's is not ready":                 {[]apiObject{storage("restricted"), sick, ready}, false},
		"in a namespace that the settings name":   {[]apiObject{sick, settings(keyDriverNamespaces, "[storage]")}, true},
		"in another one than the settings name":   {[]apiObject{storage("privileged"), sick, settings(keyDriverNamespaces, "[other]")}, false},
		"in kube-system, and the settings do not": {[]apiObject{system, settings(keyDriverNamespaces, "[]")}, false},
		"a set that is not named":                 {[]apiObject{storage("privileged"), sick, settings(keyDriverDaemonSets, driverName+": storage/named")}, false},
		"a set that is named":                     {[]apiObject{sick, settings(keyDriverDaemonSets, driverName+": storage/set")}, true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				api := newClusterAPI()
				api.put(aNode())
				for _, o := range tc.objects {
					api.put(o)
				}
				c, end := following(t, api)
				defer end()
				err := c.driverAway(t.Context(), driverName)
				if (err != nil) != tc.away || err != nil && !strings.Contains(err.Error(), driverName) {
					t.Errorf("got %v", err)
				}
			})
		})
	}
}

// TestDriverOfAnUnknownNamespace has nothing healed while nobody can say whether the
// driver is away.
func TestDriverOfAnUnknownNamespace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := newClusterAPI()
		api.put(aNode(), aDaemon(hostPaths("/var/lib/kubelet/plugins/"+driverName)))
		api.breaksFor(errSilent, "get", "namespaces")
		c, end := following(t, api)
		defer end()
		expect(t, "its namespace", c.driverAway(t.Context(), driverName), "what the cluster wants is not known")
		expect(t, "another driver's", c.driverAway(t.Context(), "another.example.com"), "")
	})
}

func TestDrained(t *testing.T) {
	cordoned := aNode()
	cordoned.Spec.Unschedulable = true
	_, claim := aVolume("pv-1")
	stays, goes, daemon := aPod("stays", claim), aPod("goes", claim), aDaemon(corev1.PodSpec{})
	goes.DeletionTimestamp, daemon.DeletionTimestamp = &metav1.Time{Time: time.Now()}, &metav1.Time{Time: time.Now()}
	for name, tc := range map[string]struct {
		node    *corev1.Node
		pods    []*corev1.Pod
		drained bool
	}{
		"nothing known":                {nil, nil, false},
		"a pod goes":                   {aNode(), []*corev1.Pod{stays, goes}, false},
		"cordoned":                     {cordoned, []*corev1.Pod{stays}, false},
		"cordoned, a pod goes":         {cordoned, []*corev1.Pod{stays, goes}, true},
		"cordoned, a daemon goes":      {cordoned, []*corev1.Pod{stays, daemon}, false},
		"cordoned, both of them going": {cordoned, []*corev1.Pod{daemon, goes}, true},
	} {
		c, err := NewCluster(configOf(t, newClusterAPI()))
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range tc.pods {
			if err := c.pods.GetIndexer().Add(p); err != nil {
				t.Fatal(err)
			}
		}
		err = c.emptied(tc.node)
		if (err != nil) != tc.drained || err != nil && !strings.Contains(err.Error(), "pod shop/goes is terminating") {
			t.Errorf("%s: %v", name, err)
		}
	}
}
