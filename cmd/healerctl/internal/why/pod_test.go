package why

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/dynamic/fake"

	"github.com/csi-addons/node-healer/cmd/healerctl/internal/kube"
	"github.com/csi-addons/node-healer/pkg/api/adminpb"
	"github.com/csi-addons/node-healer/pkg/api/v1alpha1"
	"github.com/csi-addons/node-healer/pkg/api/volumehealth"
)

// waiting returns a pod on node "here" that waits for its volumes, in a cluster with these objects.
func waiting(t *testing.T, objects ...runtime.Object) *podCase {
	t.Helper()
	scheme := runtime.NewScheme()
	if err := errors.Join(corev1.AddToScheme(scheme), v1alpha1.AddToScheme(scheme)); err != nil {
		t.Fatal(err)
	}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web", UID: "uid"}, Spec: corev1.PodSpec{NodeName: "here"}}
	return &podCase{
		api: &api{Config: Config{Client: kube.Client{Interface: fake.NewSimpleDynamicClient(scheme, objects...)}, Namespace: "shop", Program: "healerctl"}, Answer: &Answer{}},
		pod: pod, mounting: true,
	}
}

func (p *podCase) reasons() (all []string) {
	p.sort()
	for _, c := range p.Causes {
		all = append(all, c.Reason)
	}
	return all
}

// What kubelet and the attach-detach controller said of one volume says nothing of another, and
// what failed before it succeeded is in no pod's way.
func TestEventsOfVolumes(t *testing.T) {
	at := 0
	event := func(reason, message string) runtime.Object {
		at++
		return &corev1.Event{
			ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: fmt.Sprint("e", at)},
			Reason:     reason, Message: message, LastTimestamp: metav1.NewTime(time.Unix(int64(at), 0)),
		}
	}
	aborted := event("FailedMount", `MountVolume.SetUp failed for volume "a" : rpc error: code = Aborted desc = x`)
	timedOut := event("FailedMount", "Unable to attach or mount volumes: unmounted volumes=[a]: timed out waiting for the condition")
	failed := event("FailedAttachVolume", `AttachVolume.Attach failed for volume "a" : x`)
	multi := event("FailedAttachVolume", `Multi-Attach error for volume "b" Volume is already used by pod(s) x`)
	attached := event("SuccessfulAttachVolume", `AttachVolume.Attach succeeded for volume "a" `)
	for name, c := range map[string]struct {
		events []runtime.Object
		want   []string
	}{
		"the newest names no volume":   {[]runtime.Object{aborted, timedOut}, []string{"DriverBusy", "MountFailed"}},
		"mounted in the end":           {[]runtime.Object{aborted, timedOut, event("FailedCreatePodSandBox", "no network")}, []string{"ContainerWaits"}},
		"no sandbox, failed then":      {[]runtime.Object{event("FailedCreatePodSandBox", "no network"), event("FailedMount", "x")}, []string{"MountFailed", "ContainerWaits"}},
		"attached in the end":          {[]runtime.Object{failed, attached}, nil},
		"another one was attached":     {[]runtime.Object{failed, multi, attached}, []string{"AttachedElsewhere"}},
		"two of one kind":              {[]runtime.Object{failed, multi}, []string{"AttachedElsewhere", "AttachFailed"}},
		"attached before, failed then": {[]runtime.Object{attached, event("FailedAttachVolume", `AttachVolume.Attach failed for volume "a" : y`)}, []string{"AttachFailed"}},
	} {
		p := waiting(t, c.events...)
		p.events(t.Context())
		if got := p.reasons(); !slices.Equal(got, c.want) {
			t.Errorf("%s: %v, want %v: %+v", name, got, c.want, p.Answer)
		}
	}
}

// A pod that has a sandbox waits for no volume, whatever was said before: its image is pulled.
func TestSandboxIsAfterVolumes(t *testing.T) {
	for status, waits := range map[corev1.ConditionStatus]bool{corev1.ConditionTrue: false, corev1.ConditionFalse: true} {
		p := waiting(t, &corev1.Event{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "e"}, Reason: "FailedMount", Message: "x"})
		p.pod.Status.Phase, p.pod.Status.Conditions = corev1.PodPending, []corev1.PodCondition{{Type: corev1.PodReadyToStartContainers, Status: status}}
		p.state()
		p.events(t.Context())
		if strings.Contains(p.Subject, "waits for its volumes or its sandbox") != waits || (len(p.Causes) > 0) != waits {
			t.Errorf("%s: %+v", status, p.Answer)
		}
	}
}

// A server that was started anew says by annotations only that a volume is healthy again.
func TestAbnormalBefore(t *testing.T) {
	said := func(state, node string, at int64) string {
		return fmt.Sprintf(`{"state":%q,"node":%q,"lastChecked":%q}`, state, node, time.Unix(at, 0).UTC().Format(time.RFC3339))
	}
	for name, c := range map[string]struct {
		annotations []string // of a claim each; empty: an inline volume
		well        bool
	}{
		"healthy since":         {[]string{said("healthy", "here", 2), said("healthy", "here", 3)}, true},
		"one not checked since": {[]string{said("healthy", "here", 2), said("healthy", "here", 1)}, false},
		"healthy elsewhere":     {[]string{said("healthy", "there", 2)}, false},
		"one without a claim":   {[]string{said("healthy", "here", 2), ""}, false},
	} {
		p := waiting(t, &corev1.Event{
			ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "e"}, Reason: "VolumeAbnormal", LastTimestamp: metav1.NewTime(time.Unix(1, 0)),
		})
		for i, annotation := range c.annotations {
			if annotation == "" {
				p.volume(t.Context(), corev1.Volume{VolumeSource: corev1.VolumeSource{CSI: &corev1.CSIVolumeSource{Driver: "d"}}})
				continue
			}
			claim := &corev1.PersistentVolumeClaim{Spec: corev1.PersistentVolumeClaimSpec{VolumeName: "pv"}}
			claim.Name, claim.Annotations = fmt.Sprint("claim-", i), map[string]string{volumehealth.Annotation + "uid": annotation}
			p.well = append(p.well, p.health(t.Context(), claim, false))
		}
		p.events(t.Context())
		if got := p.reasons(); (len(got) == 0) != c.well {
			t.Errorf("%s: %+v", name, p.Causes)
		}
	}
}

// What a node said of a volume that it had long ago is in no pod's way elsewhere.
func TestUnhealthyBefore(t *testing.T) {
	for _, c := range []struct {
		node string
		ago  time.Duration
		sick bool
	}{{"there", volumehealth.StaleAfter, false}, {"there", time.Hour, true}, {"here", volumehealth.StaleAfter, true}} {
		p := waiting(t)
		claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: "data", Annotations: map[string]string{
			volumehealth.Annotation + "uid": fmt.Sprintf(`{"state":"unhealthy","node":%q,"lastChecked":%q}`, c.node, time.Now().Add(-c.ago).UTC().Format(time.RFC3339)),
		}}}
		if p.health(t.Context(), claim, false); (len(p.Causes) > 0) != c.sick {
			t.Errorf("%s, %s ago: %+v", c.node, c.ago, p.Causes)
		}
	}
}

// A node that was registered anew under its name has another UID, and nothing takes away what it said under the old one.
func TestUnhealthyUnderAnOldUID(t *testing.T) {
	p, now := waiting(t), time.Now().UTC().Truncate(time.Second)
	claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: "data", Annotations: map[string]string{}}}
	for uid, state := range map[string]string{"old": "unhealthy", "new": "healthy"} {
		at := now
		if uid == "old" {
			at = now.Add(-time.Hour)
		}
		claim.Annotations[volumehealth.Annotation+uid] = fmt.Sprintf(`{"state":%q,"node":"here","lastChecked":%q}`, state, at.Format(time.RFC3339))
	}
	if well := p.health(t.Context(), claim, true); len(p.Causes) > 0 || !well.Equal(now) {
		t.Errorf("well %s: %+v", well, p.Causes)
	}
}

// What a node said that had a volume before does not count once the pod's node says that it works, unless nodes
// share it.
func TestUnhealthyWhereItWas(t *testing.T) {
	said := func(state, node string, ago time.Duration) string {
		return fmt.Sprintf(`{"state":%q,"node":%q,"lastChecked":%q}`, state, node, time.Now().Add(-ago).UTC().Format(time.RFC3339))
	}
	for _, c := range []struct {
		here         string
		shared, sick bool
	}{
		{said("healthy", "here", time.Minute), false, false},
		{said("healthy", "here", time.Minute), true, true},
		{said("healthy", "here", 2*time.Hour), false, true},
		{said("unhealthy", "here", time.Minute), false, true},
	} {
		p := waiting(t)
		claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: "data", Annotations: map[string]string{
			volumehealth.Annotation + "there": said("unhealthy", "there", time.Hour), volumehealth.Annotation + "here": c.here,
		}}}
		if p.health(t.Context(), claim, c.shared); (len(p.Causes) > 0) != c.sick {
			t.Errorf("%+v: %+v", c, p.Causes)
		}
	}
}

// Kubernetes attaches a volume to several nodes if any of its modes allows that, and leaves one
// without modes to its driver.
func TestShared(t *testing.T) {
	for _, c := range []struct {
		modes  []corev1.PersistentVolumeAccessMode
		shared bool
	}{
		{[]corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}, false},
		{[]corev1.PersistentVolumeAccessMode{corev1.ReadWriteOncePod}, false},
		{[]corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce, corev1.ReadOnlyMany}, true},
		{[]corev1.PersistentVolumeAccessMode{corev1.ReadWriteMany}, true},
		{nil, true},
	} {
		claim := &corev1.PersistentVolumeClaim{
			TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "PersistentVolumeClaim"}, ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "data"},
			Spec: corev1.PersistentVolumeClaimSpec{VolumeName: "pv"}, Status: corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimBound},
		}
		pv := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pv"}, Spec: corev1.PersistentVolumeSpec{
			AccessModes:            c.modes,
			PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: "d", VolumeHandle: "h"}},
		}}
		inTree := pv.DeepCopy()
		inTree.Spec.PersistentVolumeSource = corev1.PersistentVolumeSource{Cinder: &corev1.CinderPersistentVolumeSource{VolumeID: "h"}}
		for _, pv := range []*corev1.PersistentVolume{pv, inTree} {
			p := waiting(t, pv)
			p.bound(t.Context(), claim)
			if len(p.volumes) != 1 || p.volumes[0].shared != c.shared || p.volumes[0].handle != "h" {
				t.Errorf("%v: %+v", c.modes, p.volumes)
			}
		}
	}
}

// What nobody could judge is no cause, and not said to be fine either: nor is what the server
// could not list.
func TestConditions(t *testing.T) {
	p := waiting(t)
	p.volumes = []volume{{claim: "data", driver: "d", handle: "sick"}, {claim: "new", driver: "d", handle: "unjudged"}, {claim: "well", driver: "d", handle: "well"}}
	p.Node = &Node{Volumes: func(context.Context) ([]*adminpb.Volume, error) {
		return []*adminpb.Volume{
			{Driver: "d", VolumeId: "sick", Verdict: "abnormal", Reasons: []string{"Disconnected"}, Checked: timestamppb.New(time.Unix(0, 0))},
			{Driver: "d", VolumeId: "unjudged", Verdict: "not judged", Reasons: []string{"Unjudged"}},
			{Driver: "d", VolumeId: "well", Verdict: "healthy"},
			{Driver: "another", VolumeId: "sick", Verdict: "abnormal"},
		}, errors.New("some volumes may be missing")
	}}
	p.conditions(t.Context())
	if got := p.reasons(); !slices.Equal(got, []string{"VolumeUnhealthy"}) || !strings.Contains(p.Causes[0].Message, "claim data, on this node: abnormal: Disconnected (checked 1970-01-01T00:00:00Z)") {
		t.Errorf("%+v", p.Causes)
	}
	unread := strings.Join(p.Unread, "\n")
	if len(p.Unread) != 2 || !strings.Contains(unread, "some volumes may be missing") || !strings.Contains(unread, "claim new, on this node: not judged: Unjudged") {
		t.Error(unread)
	}
}

// A thousand hanging mounts are one trouble.
func TestManyCausesOfOneReason(t *testing.T) {
	p := waiting(t)
	for i := range 1000 {
		p.add("MountHangs", fmt.Sprint("mount ", i))
	}
	p.add("MountFailed", "x")
	all := p.reasons()
	if len(all) != maxNamed+1 || all[maxNamed] != "MountFailed" || !strings.Contains(p.Causes[maxNamed-1].Message, "990 more") {
		t.Errorf("%d causes: %+v", len(all), p.Causes)
	}
}

// A node that was removed can have no taint, and its machine may still write.
func TestNodeGone(t *testing.T) {
	p := waiting(t)
	p.node(t.Context())
	if got := p.reasons(); !slices.Equal(got, []string{"NodeGone"}) {
		t.Fatal(got)
	}
	if advice := strings.Join(p.Causes[0].ToDo, "\n"); strings.Contains(advice, "kubectl taint") || strings.Contains(advice, "describe node") || !strings.Contains(advice, "switch it off") {
		t.Error(advice)
	}
}
