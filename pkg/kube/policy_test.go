package kube

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// knowing gives a cluster that knows these objects, and asks nobody.
func knowing(t *testing.T, objects ...metav1.Object) *Cluster {
	t.Helper()
	c, err := NewCluster(ClusterConfig{
		Client: newClusterAPI().client(t), Node: nodeName, Namespace: "healer", ConfigMap: "settings", Staleness: staleness,
	})
	if err != nil {
		t.Fatal(err)
	}
	learns(t, c, objects...)
	return c
}

// learns gives a cluster objects as its feeds would.
func learns(t *testing.T, c *Cluster, objects ...metav1.Object) {
	t.Helper()
	for _, o := range objects {
		f := map[string]*feed{
			"*v1.Node": c.node, "*v1.Pod": c.pods, "*v1.PersistentVolume": c.volumes, "*v1.ConfigMap": c.configMap,
			"*v1.PersistentVolumeClaim": c.claims, "*v1.StorageClass": c.classes,
		}[fmt.Sprintf("%T", o)]
		if f == c.claims || f == c.classes {
			o = &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{
				Namespace: o.GetNamespace(), Name: o.GetName(), UID: o.GetUID(), Annotations: o.GetAnnotations(),
			}}
		}
		kept, err := f.source.strip(o)
		if err == nil {
			err = f.informer.GetIndexer().Add(kept)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

func aClass(name string) *storagev1.StorageClass {
	return &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: name}}
}

// theSettings is the ConfigMap that knowing's clusters read.
func theSettings(data map[string]string) *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "healer", Name: "settings"}, Data: data}
}

// says puts a mode on an object; an empty one leaves it without.
func says[T metav1.Object](o T, mode string) T {
	if mode != "" {
		o.SetAnnotations(map[string]string{modeAnnotation: mode})
	}
	return o
}

func TestParseMode(t *testing.T) {
	for word, want := range map[string]mode{"off": modeOff, "check": modeCheck, "heal": modeHeal} {
		if got, err := parseMode(word); got != want || err != nil || got.String() != word {
			t.Errorf("%q is %s, %v", word, got, err)
		}
	}
	for _, word := range []string{"", "Off", "OFF", " off", "off\n", "none", "healer", "0", "true", string(make([]byte, 1<<20))} {
		got, err := parseMode(word)
		if got != modeCheck || err == nil {
			t.Errorf("%.20q is %s, %v", word, got, err)
		}
		if err != nil && len(err.Error()) > 300 {
			t.Errorf("%.20q gives an error of %d bytes", word, len(err.Error()))
		}
	}
}

// TestMostSpecificWordCounts tries everything that five objects and the settings
// can say of one volume.
func TestMostSpecificWordCounts(t *testing.T) {
	words := []string{"", "off", "check", "heal", "bad"}
	modes := map[string]mode{"off": modeOff, "check": modeCheck, "bad": modeCheck, "heal": modeHeal}
	of := volumeName{driver: driverName, handle: handle, directory: "pv-1"}
	c := knowing(t)
	var said [5]string // by the node, the class, the volume, the claim, the pod
	for i := range 5 * 5 * 5 * 5 * 5 {
		want, by := modeHeal, -1
		for object, rest := 0, i; object < len(said); object, rest = object+1, rest/len(words) {
			if said[object] = words[rest%len(words)]; said[object] != "" {
				want, by = modes[said[object]], object
			}
		}
		pv, claim := aVolume("pv-1")
		pv.Spec.StorageClassName = "fast"
		names := []string{"Node node-1", "StorageClass fast", "PersistentVolume pv-1", "PersistentVolumeClaim shop/claim-of-pv-1", "Pod shop/app"}
		learns(t, c, says(aNode(), said[0]), says(aClass("fast"), said[1]), says(pv, said[2]), says(claim, said[3]), says(aPod("app", claim), said[4]))

		r := c.rulingOn(c.rules(), of, "uid-of-app")
		if r.mode != want || (r.trouble != nil) != (by >= 0 && said[by] == "bad") {
			t.Fatalf("%q: %+v", said, r)
		}
		if want < modeHeal && r.by != names[by]+", annotation "+modeAnnotation {
			t.Fatalf("%q: by %s", said, r.by)
		}
		if (r.forbids(modeHeal) == nil) != (want == modeHeal) || (r.forbids(modeCheck) == nil) != (want > modeOff) {
			t.Fatalf("%q: %v, %v", said, r.forbids(modeHeal), r.forbids(modeCheck))
		}
	}
}

// TestSettingsAreTheMost: whatever annotations say, nobody does more.
func TestSettingsAreTheMost(t *testing.T) {
	of := volumeName{driver: driverName, handle: handle, directory: "pv-1"}
	for _, most := range []string{"off", "check", "heal", "bad"} {
		for _, annotated := range []string{"", "off", "check", "heal", "bad"} {
			pv, claim := aVolume("pv-1")
			c := knowing(t, says(claim, annotated), pv, theSettings(map[string]string{keyMode: most}))
			limit, _ := parseMode(most)
			own, _ := parseMode(annotated)
			if annotated == "" {
				own = modeHeal
			}
			if got := c.rulingOn(c.rules(), of, "").mode; got != min(limit, own) {
				t.Errorf("settings %q, claim %q: %s", most, annotated, got)
			}
		}
	}
}

// TestRulingOnAPlace: whose word counts at which place, and for which name.
func TestRulingOnAPlace(t *testing.T) {
	var (
		published = volumeName{driver: driverName, handle: handle, directory: "pv-1"}
		staged    = volumeName{handle: handle}
	)
	pv, claim := aVolume("pv-1")
	theirs, theirClaim := aVolume("pv-2")
	theirs.Spec.CSI.Driver = "another.csi.example.com" // with the same handle
	inTree, inTreeClaim := aVolume("pv-3")
	inTree.Spec.CSI = nil
	later := claim.DeepCopy()
	later.UID = "uid-of-a-later-claim"
	inline := aPod("inline", claim)
	inline.Spec.Volumes = []corev1.Volume{{Name: "pv-1", VolumeSource: corev1.VolumeSource{CSI: &corev1.CSIVolumeSource{Driver: driverName}}}}

	for name, tc := range map[string]struct {
		objects []metav1.Object
		of      volumeName
		pod     types.UID
		want    mode
	}{
		"nobody says anything":         {[]metav1.Object{pv, claim, aPod("app", claim)}, published, "uid-of-app", modeHeal},
		"nothing is known":             {nil, published, "uid-of-app", modeHeal},
		"the node, of what it has":     {[]metav1.Object{says(aNode(), "off")}, published, "uid-of-app", modeOff},
		"another node's word":          {[]metav1.Object{says(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-2"}}, "off")}, published, "", modeHeal},
		"another pod's word":           {[]metav1.Object{pv, claim, aPod("app", claim), says(aPod("other", claim), "off")}, published, "uid-of-app", modeHeal},
		"of a staged place, any pod's": {[]metav1.Object{pv, claim, aPod("app", claim), says(aPod("other", claim), "off")}, staged, "", modeOff},
		"of a staged place, a pod's heal": {
			[]metav1.Object{pv, says(claim.DeepCopy(), "check"), says(aPod("app", claim), "heal")},
			staged, "", modeCheck,
		},
		"a pod that uses another claim": {[]metav1.Object{pv, claim, says(aPod("other", theirClaim), "off")}, staged, "", modeHeal},
		"a later claim of that name":    {[]metav1.Object{pv, says(later, "off")}, published, "", modeHeal},
		"a handle that two drivers share": {
			[]metav1.Object{pv, claim, says(theirs.DeepCopy(), "off"), theirClaim},
			volumeName{driver: driverName, handle: handle},
			"", modeHeal,
		},
		"a handle that two drivers share, before it is known whose": {
			[]metav1.Object{pv, claim, says(theirs.DeepCopy(), "off"), theirClaim},
			staged, "", modeOff,
		},
		"a caller takes it for another volume": {
			[]metav1.Object{says(pv.DeepCopy(), "off"), claim},
			volumeName{handle: "another", directory: "pv-1"},
			"uid-of-app", modeOff,
		},
		"an in-tree volume, served by a CSI driver": {
			[]metav1.Object{inTree, says(inTreeClaim, "check")},
			volumeName{driver: driverName, handle: handle, directory: "pv-3"},
			"uid-of-app", modeCheck,
		},
		"an inline volume, its pod's word": {[]metav1.Object{says(inline.DeepCopy(), "off")}, published, "uid-of-inline", modeOff},
		"an inline volume named like another's": {
			[]metav1.Object{says(aNode(), "off"), says(theirs.DeepCopy(), "heal"), theirClaim, inline},
			volumeName{driver: driverName, handle: "csi-1", directory: "pv-2"},
			"uid-of-inline", modeOff,
		},
	} {
		c := knowing(t, tc.objects...)
		if got := c.rulingOn(c.rules(), tc.of, string(tc.pod)); got.mode != tc.want {
			t.Errorf("%s: %+v, want %s", name, got, tc.want)
		}
	}
}
