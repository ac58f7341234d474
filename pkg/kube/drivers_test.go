package kube

import (
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// aDaemon is the ready pod of the DaemonSet storage/set, as the feed keeps it.
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
		"another root of kubelet's":    {hostPaths("/data/plugins/a.example.com"), nil, []string{"a.example.com"}},
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
		got := driversOf(aDaemon(tc.spec), tc.named)
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
	second.Name = "set-y"
	lonely := sick.DeepCopy()
	lonely.OwnerReferences = nil
	for name, tc := range map[string]struct {
		pods []metav1.Object
		away bool
	}{
		"no pod":                  {nil, false},
		"ready":                   {[]metav1.Object{ready}, false},
		"not ready":               {[]metav1.Object{sick}, true},
		"terminating":             {[]metav1.Object{going}, true},
		"one of two":              {[]metav1.Object{ready, second}, false},
		"a pod of no DaemonSet":   {[]metav1.Object{lonely}, false},
		"a set that is not named": {[]metav1.Object{sick, theSettings(map[string]string{keyDriverDaemonSets: driverName + ": storage/named"})}, false},
		"a set that is named":     {[]metav1.Object{sick, theSettings(map[string]string{keyDriverDaemonSets: driverName + ": storage/set"})}, true},
	} {
		c := knowing(t, tc.pods...)
		c.cfg.DriverGrace = time.Hour
		err := c.driverAway(driverName)
		if (err != nil) != tc.away || err != nil && !strings.Contains(err.Error(), driverName) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestDrained(t *testing.T) {
	cordoned := aNode()
	cordoned.Spec.Unschedulable = true
	other := cordoned.DeepCopy()
	other.Name = "node-2"
	_, claim := aVolume("pv-1")
	stays, goes, daemon := aPod("stays", claim), aPod("goes", claim), aDaemon(corev1.PodSpec{})
	goes.DeletionTimestamp, daemon.DeletionTimestamp = &metav1.Time{Time: time.Now()}, &metav1.Time{Time: time.Now()}
	for name, tc := range map[string]struct {
		objects []metav1.Object
		drained bool
	}{
		"nothing known":                {nil, false},
		"a pod goes":                   {[]metav1.Object{aNode(), stays, goes}, false},
		"cordoned":                     {[]metav1.Object{cordoned, stays}, false},
		"cordoned, a pod goes":         {[]metav1.Object{cordoned, stays, goes}, true},
		"cordoned, a daemon goes":      {[]metav1.Object{cordoned, stays, daemon}, false},
		"another node is cordoned":     {[]metav1.Object{aNode(), other, goes}, false},
		"cordoned, both of them going": {[]metav1.Object{cordoned, daemon, goes}, true},
	} {
		err := knowing(t, tc.objects...).drained()
		if (err != nil) != tc.drained || err != nil && !strings.Contains(err.Error(), "pod shop/goes is terminating") {
			t.Errorf("%s: %v", name, err)
		}
	}
}
