package cluster

import (
	"os"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

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
			c:        c,
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

// A modeCase is what the API holds, and the mode of a mount point of the volume.
type modeCase struct {
	objects []kubetest.Object
	of      volumeName
	pod     types.UID
	want    mode
}

var (
	// publishedVolume is what a target of kubelet's names, stagedVolume what a staging path does.
	publishedVolume = volumeName{driver: kubetest.DriverName, handle: kubetest.Handle, directory: "pv-1"}
	stagedVolume    = volumeName{handle: kubetest.Handle}
)

// TestModeAtAMountPoint: which objects count at which mount point, and for which name.
func TestModeAtAMountPoint(t *testing.T) {
	pv, claim := kubetest.Volume("pv-1")
	_, theirClaim := kubetest.Volume("pv-2")
	later := claim.DeepCopy()
	later.UID = "uid-of-a-later-claim"
	app := kubetest.Pod("app", claim)
	other := says(kubetest.Pod("other", claim), "off")

	for name, tc := range map[string]modeCase{
		"a pod's heal overrules nothing": {
			objects: []kubetest.Object{says(kubetest.Node(), "check"), says(pv.DeepCopy(), "off"), says(claim.DeepCopy(), "heal"), says(app.DeepCopy(), "heal")},
			of:      publishedVolume, pod: app.UID, want: modeOff,
		},
		"no mode is set": {
			objects: []kubetest.Object{pv, claim, app},
			of:      publishedVolume, pod: app.UID, want: modeHeal,
		},
		"nothing is known": {of: publishedVolume, pod: app.UID, want: modeHeal},
		"the node, of what it has": {
			objects: []kubetest.Object{says(kubetest.Node(), "off")},
			of:      publishedVolume, pod: app.UID, want: modeOff,
		},
		"another node's mode": {
			objects: []kubetest.Object{says(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-2"}}, "off")},
			of:      publishedVolume, want: modeHeal,
		},
		"another pod's mode": {
			objects: []kubetest.Object{pv, claim, app, other},
			of:      publishedVolume, pod: app.UID, want: modeHeal,
		},
		"of a staging mount point, any pod's mode": {
			objects: []kubetest.Object{pv, claim, app, other},
			of:      stagedVolume, want: modeOff,
		},
		"of a staging mount point, a pod's heal": {
			objects: []kubetest.Object{pv, says(claim.DeepCopy(), "check"), says(app.DeepCopy(), "heal")},
			of:      stagedVolume, want: modeCheck,
		},
		"a pod that uses another claim": {
			objects: []kubetest.Object{pv, claim, says(kubetest.Pod("other", theirClaim), "off")},
			of:      stagedVolume, want: modeHeal,
		},
		"a later claim of that name": {objects: []kubetest.Object{pv, says(later, "off")}, of: publishedVolume, want: modeHeal},
	} {
		t.Run(name, func(t *testing.T) { tc.run(t, claim, theirClaim) })
	}
}

func TestModeOfAVolumeTakenForAnother(t *testing.T) {
	pv, claim := kubetest.Volume("pv-1")
	theirs, theirClaim := kubetest.Volume("pv-2")
	theirs.Spec.CSI.Driver = "another.csi.example.com" // with the same handle
	inTree, inTreeClaim := kubetest.Volume("pv-3")
	inTree.Spec.CSI = nil
	inline := kubetest.Pod("inline", claim)
	inline.Spec.Volumes = []corev1.Volume{{Name: "pv-1", VolumeSource: corev1.VolumeSource{CSI: &corev1.CSIVolumeSource{Driver: kubetest.DriverName}}}}

	both := kubetest.Pod("both", claim)
	both.Spec.Volumes = append(both.Spec.Volumes, corev1.Volume{Name: "pv-1", VolumeSource: corev1.VolumeSource{CSI: &corev1.CSIVolumeSource{Driver: "any"}}})

	for name, tc := range map[string]modeCase{
		"a handle that two drivers share": {
			objects: []kubetest.Object{pv, claim, says(theirs.DeepCopy(), "off"), theirClaim},
			of:      volumeName{driver: kubetest.DriverName, handle: kubetest.Handle}, want: modeHeal,
		},
		"a handle that two drivers share, before it is known whose": {
			objects: []kubetest.Object{pv, claim, says(theirs.DeepCopy(), "off"), theirClaim},
			of:      stagedVolume, want: modeOff,
		},
		"a caller takes it for another volume": {
			objects: []kubetest.Object{says(pv.DeepCopy(), "off"), claim},
			of:      volumeName{handle: "another", directory: "pv-1"}, pod: "uid-of-app", want: modeOff,
		},
		"an in-tree volume, served by a CSI driver": {
			objects: []kubetest.Object{inTree, says(inTreeClaim, "check")},
			of:      volumeName{driver: kubetest.DriverName, handle: kubetest.Handle, directory: "pv-3"}, pod: "uid-of-app", want: modeCheck,
		},
		"an inline volume, its pod's mode": {
			objects: []kubetest.Object{says(inline.DeepCopy(), "off")},
			of:      publishedVolume, pod: inline.UID, want: modeOff,
		},
		"an inline volume named like another's": {
			objects: []kubetest.Object{says(kubetest.Node(), "off"), says(theirs.DeepCopy(), "heal"), theirClaim, inline},
			of:      volumeName{driver: kubetest.DriverName, handle: "csi-1", directory: "pv-2"}, pod: inline.UID, want: modeOff,
		},
		"an inline volume beside it that has its name": {
			objects: []kubetest.Object{says(pv.DeepCopy(), "off"), claim, both},
			of:      publishedVolume, pod: both.UID, want: modeOff,
		},
		"before it is known whose it is": {
			objects: []kubetest.Object{says(pv.DeepCopy(), "off"), claim, both},
			of:      volumeName{handle: kubetest.Handle, directory: "pv-1"}, pod: both.UID, want: modeOff,
		},
	} {
		t.Run(name, func(t *testing.T) { tc.run(t, claim, theirClaim) })
	}
}

// run expects the mode, for a look and for a step. A pod uses each of the claims: others belong
// to other nodes.
func (tc modeCase) run(t *testing.T, claims ...*corev1.PersistentVolumeClaim) {
	synctest.Test(t, func(t *testing.T) {
		api := kubetest.NewAPI()
		user := kubetest.Pod("user", claims[0])
		user.Spec.Volumes = nil
		for _, of := range claims {
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

// TestKillSwitchWhileTheRestIsRead: what an informer brings counts although the settings were
// read before it.
func TestKillSwitchWhileTheRestIsRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := kubetest.NewAPI()
		disk := newDisk(api)
		disk.settings(clustersettings.Mode, "heal")
		c, end := following(t, api)
		defer end()
		node := &thisHost{t: t, runs: os.Getpid()}
		d, step := node.at(podMountPoint, false)
		p, err := c.with(node).Enter(t.Context(), d, step)
		if err != nil {
			t.Fatal(err)
		}
		defer p.Leave(nil)
		api.BreakFor(kubetest.ErrNoAnswer, "get", "persistentvolumes") // known, and waited for
		go func() {
			time.Sleep(requestTimeout / 2)
			disk.settings(clustersettings.Mode, "off")
		}()
		expect(t, "a step", p.Revalidate(t.Context()), "mode off")
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
				for range 2 {
					_, err = gate.Enter(t.Context(), d, step)
					expect(t, "later", err, "mode off")
				}
			})
		})
	}
}

// TestSettingsAfterARestore: when etcd is restored from a backup, objects get resourceVersions again that are lower
// than the last ones, and a watch may bring nothing until they are as high.
func TestSettingsAfterARestore(t *testing.T) {
	for name, stalled := range map[string]bool{"the informer follows": false, "the informer is stalled": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				api := kubetest.NewAPI()
				disk := newDisk(api)
				api.Set(func(a *kubetest.API) { a.Version = 1000 })
				disk.settings(clustersettings.Mode, "heal")
				c, end := following(t, api)
				defer end()
				node := &thisHost{t: t, runs: os.Getpid()}
				d, step := node.at(podMountPoint, false)
				p, err := c.with(node).Enter(t.Context(), d, step)
				if err != nil {
					t.Fatal(err)
				}
				defer p.Leave(nil)
				api.Set(func(a *kubetest.API) { a.Version, a.Stalled = 500, stalled })
				disk.settings(clustersettings.Mode, "off")
				synctest.Wait()
				expect(t, "a step", p.Revalidate(t.Context()), "mode off")
				_, err = c.with(node).Inspect(t.Context(), d.Case.Volume)
				if !stalled {
					expect(t, "a check", err, "mode off")
				}
				disk.settings(clustersettings.Mode, "heal")
				synctest.Wait()
				expect(t, "another step", p.Revalidate(t.Context()), "")
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
