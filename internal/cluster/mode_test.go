package cluster

import (
	"os"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/csi-addons/node-healer/pkg/api/clustersettings"
	"github.com/csi-addons/node-healer/test/harness/kubetest"
)

func aClass(name string) *storagev1.StorageClass {
	return &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: name}}
}

// theSettings returns the ConfigMap that the tests' clusters read.
func theSettings(data map[string]string) *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "healer", Name: "settings"}, Data: data}
}

// says annotates an object with a mode, unless it is empty.
func says[T metav1.Object](o T, mode string) T {
	if mode != "" {
		o.SetAnnotations(map[string]string{clustersettings.ModeAnnotation: mode})
	}
	return o
}

func TestParseMode(t *testing.T) {
	for word, want := range map[string]mode{"off": modeOff, "check": modeCheck, "heal": modeHeal} {
		if got, err := parseMode(word); got != want || err != nil || got.String() != word {
			t.Errorf("%q is %s, %v", word, got, err)
		}
	}
	for _, word := range []string{"", "Off", "OFF", " off", "off\n", "none", "healer", "0", "true", string(make([]byte, 1<<20)), strings.Repeat("x", 64)} {
		got, err := parseMode(word)
		if got != modeCheck || err == nil {
			t.Errorf("%.20q is %s, %v", word, got, err)
		}
		if err != nil && len(err.Error()) > 300 {
			t.Errorf("%.20q gives an error of %d bytes", word, len(err.Error()))
		}
	}
}

// TestStrictestModeCounts tries all combinations of modes of five objects and the
// settings: who may write to a pod cannot overrule the others.
func TestStrictestModeCounts(t *testing.T) {
	words := []string{"", "off", "check", "heal", "bad"}
	modes := map[string]mode{"": modeHeal, "off": modeOff, "check": modeCheck, "bad": modeCheck, "heal": modeHeal}
	c := clusterOf(t, kubetest.NewAPI())
	names := []string{
		"Node node-1, ", "StorageClass fast, ", "PersistentVolume pv-1, ", "PersistentVolumeClaim shop/claim-of-pv-1, ", "Pod shop/app, ",
		"ConfigMap healer/settings",
	}
	var said [6]string // by the node, the class, the volume, the claim, the pod, the settings
	for i := range 5 * 5 * 5 * 5 * 5 * 5 {
		want := modeHeal
		for object, rest := 0, i; object < len(said); object, rest = object+1, rest/len(words) {
			said[object] = words[rest%len(words)]
			want = min(want, modes[said[object]])
		}
		pv, claim := kubetest.Volume("pv-1")
		w := &view{
			settings: defaultSettings(),
			node:     says(kubetest.Node(), said[0]), pods: []*corev1.Pod{says(kubetest.Pod("app", claim), said[4])},
			volumes: []boundVolume{{pv: says(pv, said[2]), claim: says(claim, said[3]), class: says(aClass("fast"), said[1]), matches: true}},
		}
		if said[5] != "" {
			w.settings = parseSettings(map[string]string{clustersettings.Mode: said[5]})
		}
		r := c.mode(w)
		if r.mode != want {
			t.Fatalf("%q: %+v", said, r)
		}
		by := slices.IndexFunc(names, func(name string) bool { return strings.HasPrefix(r.by, name) })
		if want < modeHeal && (by < 0 || modes[said[by]] != want || (r.err != nil) != (said[by] == "bad")) {
			t.Fatalf("%q: by %s, %v", said, r.by, r.err)
		}
		if (r.require(modeHeal) == nil) != (want == modeHeal) || (r.require(modeCheck) == nil) != (want > modeOff) {
			t.Fatalf("%q: %v, %v", said, r.require(modeHeal), r.require(modeCheck))
		}
	}
}

// TestModeAtAMountPoint: which objects count at which mount point, and for which name.
func TestModeAtAMountPoint(t *testing.T) {
	var (
		published = volumeName{driver: kubetest.DriverName, handle: kubetest.Handle, directory: "pv-1"}
		staged    = volumeName{handle: kubetest.Handle}
	)
	pv, claim := kubetest.Volume("pv-1")
	theirs, theirClaim := kubetest.Volume("pv-2")
	theirs.Spec.CSI.Driver = "another.csi.example.com" // with the same handle
	inTree, inTreeClaim := kubetest.Volume("pv-3")
	inTree.Spec.CSI = nil
	later := claim.DeepCopy()
	later.UID = "uid-of-a-later-claim"
	inline := kubetest.Pod("inline", claim)
	inline.Spec.Volumes = []corev1.Volume{{Name: "pv-1", VolumeSource: corev1.VolumeSource{CSI: &corev1.CSIVolumeSource{Driver: kubetest.DriverName}}}}

	for name, tc := range map[string]struct {
		objects []kubetest.Object
		of      volumeName
		pod     types.UID
		want    mode
	}{
		"a pod's heal overrules nothing": {
			[]kubetest.Object{says(kubetest.Node(), "check"), says(pv.DeepCopy(), "off"), says(claim.DeepCopy(), "heal"), says(kubetest.Pod("app", claim), "heal")},
			published, "uid-of-app", modeOff,
		},
		"no mode is set":                           {[]kubetest.Object{pv, claim, kubetest.Pod("app", claim)}, published, "uid-of-app", modeHeal},
		"nothing is known":                         {nil, published, "uid-of-app", modeHeal},
		"the node, of what it has":                 {[]kubetest.Object{says(kubetest.Node(), "off")}, published, "uid-of-app", modeOff},
		"another node's mode":                      {[]kubetest.Object{says(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-2"}}, "off")}, published, "", modeHeal},
		"another pod's mode":                       {[]kubetest.Object{pv, claim, kubetest.Pod("app", claim), says(kubetest.Pod("other", claim), "off")}, published, "uid-of-app", modeHeal},
		"of a staging mount point, any pod's mode": {[]kubetest.Object{pv, claim, kubetest.Pod("app", claim), says(kubetest.Pod("other", claim), "off")}, staged, "", modeOff},
		"of a staging mount point, a pod's heal": {
			[]kubetest.Object{pv, says(claim.DeepCopy(), "check"), says(kubetest.Pod("app", claim), "heal")},
			staged, "", modeCheck,
		},
		"a pod that uses another claim": {[]kubetest.Object{pv, claim, says(kubetest.Pod("other", theirClaim), "off")}, staged, "", modeHeal},
		"a later claim of that name":    {[]kubetest.Object{pv, says(later, "off")}, published, "", modeHeal},
		"a handle that two drivers share": {
			[]kubetest.Object{pv, claim, says(theirs.DeepCopy(), "off"), theirClaim},
			volumeName{driver: kubetest.DriverName, handle: kubetest.Handle},
			"", modeHeal,
		},
		"a handle that two drivers share, before it is known whose": {
			[]kubetest.Object{pv, claim, says(theirs.DeepCopy(), "off"), theirClaim},
			staged, "", modeOff,
		},
		"a caller takes it for another volume": {
			[]kubetest.Object{says(pv.DeepCopy(), "off"), claim},
			volumeName{handle: "another", directory: "pv-1"},
			"uid-of-app", modeOff,
		},
		"an in-tree volume, served by a CSI driver": {
			[]kubetest.Object{inTree, says(inTreeClaim, "check")},
			volumeName{driver: kubetest.DriverName, handle: kubetest.Handle, directory: "pv-3"},
			"uid-of-app", modeCheck,
		},
		"an inline volume, its pod's mode": {[]kubetest.Object{says(inline.DeepCopy(), "off")}, published, "uid-of-inline", modeOff},
		"an inline volume named like another's": {
			[]kubetest.Object{says(kubetest.Node(), "off"), says(theirs.DeepCopy(), "heal"), theirClaim, inline},
			volumeName{driver: kubetest.DriverName, handle: "csi-1", directory: "pv-2"},
			"uid-of-inline", modeOff,
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				api := kubetest.NewAPI()
				// Each claim has a pod that uses it: others belong to other nodes.
				user := kubetest.Pod("user", claim)
				user.Spec.Volumes = nil
				for _, of := range []*corev1.PersistentVolumeClaim{claim, theirClaim} {
					user.Spec.Volumes = append(user.Spec.Volumes, kubetest.Pod("", of).Spec.Volumes...)
				}
				api.Put(kubetest.Node(), user)
				for _, o := range tc.objects {
					api.Put(o)
				}
				c, end := following(t, api)
				defer end()
				if got := c.mode(c.recall(t.Context(), tc.of, string(tc.pod))); got.mode != tc.want {
					t.Errorf("for a look: %+v, want %s", got, tc.want)
				}
				w, err := c.ask(t.Context(), tc.of, string(tc.pod), false)
				if got := c.mode(w); got.mode != tc.want || err != nil {
					t.Errorf("for a step: %+v, %v, want %s", got, err, tc.want)
				}
			})
		})
	}
}

// TestKillSwitchThatTheInformerMissed: the settings are read before a step, and again
// before its mount point becomes usable.
func TestKillSwitchThatTheInformerMissed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := kubetest.NewAPI()
		disk := newDisk(api)
		c, end := following(t, api)
		defer end()
		node := &thisHost{t: t, runs: os.Getpid()} // a container overrides no mode
		d, step := node.at(podMountPoint, false)
		gate := c.with(node)
		p, err := gate.Enter(t.Context(), d, step)
		if err != nil {
			t.Fatal(err)
		}
		defer p.Leave(nil)
		api.Set(func(a *kubetest.API) { a.Stalled = true })
		disk.settings(clustersettings.Mode, "off")
		expect(t, "in the middle", p.Revalidate(t.Context()), "mode off")
		_, err = gate.Enter(t.Context(), d, step)
		expect(t, "before", err, "mode off")
		expect(t, "a write", gate.Write(t.Context(), d.Case, step.MountPoint, true), "mode off")
	})
}

// TestKillSwitchIsNotForgotten: it holds when the API does not answer a moment later,
// or when the settings were deleted.
func TestKillSwitchIsNotForgotten(t *testing.T) {
	for name, later := range map[string]func(*disk){
		"deleted": func(d *disk) {
			d.api.Remove(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "healer", Name: "settings"}})
		},
		"no answer":   func(d *disk) { d.api.BreakFor(kubetest.ErrNoAnswer, "get", "configmaps") },
		"unavailable": func(d *disk) { d.api.BreakFor(apierrors.NewServiceUnavailable("busy"), "get", "configmaps") },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				api := kubetest.NewAPI()
				disk := newDisk(api)
				disk.settings(clustersettings.Mode, "heal")
				c, end := following(t, api)
				defer end()
				node := &thisHost{t: t}
				d, step := node.at(podMountPoint, false)
				gate := c.with(node)
				api.Set(func(a *kubetest.API) { a.Stalled = true })
				disk.settings(clustersettings.Mode, "off")
				_, err := gate.Enter(t.Context(), d, step)
				expect(t, "at first", err, "mode off")
				later(disk)
				_, err = gate.Enter(t.Context(), d, step)
				expect(t, "later", err, "mode off")
			})
		})
	}
}

// TestModeOfThePodThatTheInformerMissed: the mode is read with the pod.
func TestModeOfThePodThatTheInformerMissed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := kubetest.NewAPI()
		disk := newDisk(api)
		c, end := following(t, api)
		defer end()
		api.Set(func(a *kubetest.API) { a.Stalled = true })
		disk.pod.Annotations = map[string]string{clustersettings.ModeAnnotation: "check"}
		api.Put(disk.pod)
		node := &thisHost{t: t}
		d, step := node.at(podMountPoint, false)
		_, err := c.with(node).Enter(t.Context(), d, step)
		expect(t, "a step", err, "mode check by Pod")
	})
}
