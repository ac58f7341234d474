package kube

import (
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

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

// TestStrictestWordCounts tries everything that five objects and the settings can
// say of one volume: whoever may write to a pod overrules nobody.
func TestStrictestWordCounts(t *testing.T) {
	words := []string{"", "off", "check", "heal", "bad"}
	modes := map[string]mode{"": modeHeal, "off": modeOff, "check": modeCheck, "bad": modeCheck, "heal": modeHeal}
	c := &Cluster{cfg: ClusterConfig{Namespace: "healer", ConfigMap: "settings"}}
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
		pv, claim := aVolume("pv-1")
		w := view{
			settings: defaultSettings(), node: says(aNode(), said[0]), pods: []*corev1.Pod{says(aPod("app", claim), said[4])},
			volumes: []boundVolume{{pv: says(pv, said[2]), claim: says(claim, said[3]), class: says(aClass("fast"), said[1]), fits: true}},
		}
		if said[5] != "" {
			w.settings = parseSettings(map[string]string{keyMode: said[5]})
		}
		r := c.ruling(w)
		if r.mode != want {
			t.Fatalf("%q: %+v", said, r)
		}
		by := slices.IndexFunc(names, func(name string) bool { return strings.HasPrefix(r.by, name) })
		if want < modeHeal && (by < 0 || modes[said[by]] != want || (r.trouble != nil) != (said[by] == "bad")) {
			t.Fatalf("%q: by %s, %v", said, r.by, r.trouble)
		}
		if (r.forbids(modeHeal) == nil) != (want == modeHeal) || (r.forbids(modeCheck) == nil) != (want > modeOff) {
			t.Fatalf("%q: %v, %v", said, r.forbids(modeHeal), r.forbids(modeCheck))
		}
	}
}

// TestRulingOnAMountPoint: whose word counts at which mount point, and for which name.
func TestRulingOnAMountPoint(t *testing.T) {
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
		objects []apiObject
		of      volumeName
		pod     types.UID
		want    mode
	}{
		"a pod's heal beats nobody": {
			[]apiObject{says(aNode(), "check"), says(pv.DeepCopy(), "off"), says(claim.DeepCopy(), "heal"), says(aPod("app", claim), "heal")},
			published, "uid-of-app", modeOff,
		},
		"nobody says anything":               {[]apiObject{pv, claim, aPod("app", claim)}, published, "uid-of-app", modeHeal},
		"nothing is known":                   {nil, published, "uid-of-app", modeHeal},
		"the node, of what it has":           {[]apiObject{says(aNode(), "off")}, published, "uid-of-app", modeOff},
		"another node's word":                {[]apiObject{says(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-2"}}, "off")}, published, "", modeHeal},
		"another pod's word":                 {[]apiObject{pv, claim, aPod("app", claim), says(aPod("other", claim), "off")}, published, "uid-of-app", modeHeal},
		"of a staging mount point, any pod's": {[]apiObject{pv, claim, aPod("app", claim), says(aPod("other", claim), "off")}, staged, "", modeOff},
		"of a staging mount point, a pod's heal": {
			[]apiObject{pv, says(claim.DeepCopy(), "check"), says(aPod("app", claim), "heal")},
			staged, "", modeCheck,
		},
		"a pod that uses another claim": {[]apiObject{pv, claim, says(aPod("other", theirClaim), "off")}, staged, "", modeHeal},
		"a later claim of that name":    {[]apiObject{pv, says(later, "off")}, published, "", modeHeal},
		"a handle that two drivers share": {
			[]apiObject{pv, claim, says(theirs.DeepCopy(), "off"), theirClaim},
			volumeName{driver: driverName, handle: handle},
			"", modeHeal,
		},
		"a handle that two drivers share, before it is known whose": {
			[]apiObject{pv, claim, says(theirs.DeepCopy(), "off"), theirClaim},
			staged, "", modeOff,
		},
		"a caller takes it for another volume": {
			[]apiObject{says(pv.DeepCopy(), "off"), claim},
			volumeName{handle: "another", directory: "pv-1"},
			"uid-of-app", modeOff,
		},
		"an in-tree volume, served by a CSI driver": {
			[]apiObject{inTree, says(inTreeClaim, "check")},
			volumeName{driver: driverName, handle: handle, directory: "pv-3"},
			"uid-of-app", modeCheck,
		},
		"an inline volume, its pod's word": {[]apiObject{says(inline.DeepCopy(), "off")}, published, "uid-of-inline", modeOff},
		"an inline volume named like another's": {
			[]apiObject{says(aNode(), "off"), says(theirs.DeepCopy(), "heal"), theirClaim, inline},
			volumeName{driver: driverName, handle: "csi-1", directory: "pv-2"},
			"uid-of-inline", modeOff,
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				api := newClusterAPI()
				// Whatever claim is named, a pod uses it: the others are other nodes'.
				user := aPod("user", claim)
				user.Spec.Volumes = nil
				for _, of := range []*corev1.PersistentVolumeClaim{claim, theirClaim} {
					user.Spec.Volumes = append(user.Spec.Volumes, aPod("", of).Spec.Volumes...)
				}
				api.put(aNode(), user)
				for _, o := range tc.objects {
					api.put(o)
				}
				c, end := following(t, api)
				defer end()
				if got := c.ruling(c.look(t.Context(), tc.of, string(tc.pod))); got.mode != tc.want {
					t.Errorf("for a look: %+v, want %s", got, tc.want)
				}
				w, err := c.ask(t.Context(), tc.of, string(tc.pod), false)
				if got := c.ruling(w); got.mode != tc.want || err != nil {
					t.Errorf("for a step: %+v, %v, want %s", got, err, tc.want)
				}
			})
		})
	}
}
