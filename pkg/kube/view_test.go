package kube

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// scene is one volume with its claim and its pod.
type scene struct {
	pv    *corev1.PersistentVolume
	claim *corev1.PersistentVolumeClaim
	pod   *corev1.Pod
	// name is what the node knows of the volume.
	name volumeName
}

func newScene() *scene {
	pv, claim := aVolume("pv-1")
	return &scene{pv, claim, aPod("app", claim), volumeName{driver: driverName, handle: handle, directory: "pv-1"}}
}

// play puts everything into the API that was not taken away.
func (s *scene) play(api *clusterAPI) {
	api.put(aNode())
	if s.pv != nil {
		api.put(s.pv)
	}
	if s.claim != nil {
		api.put(s.claim)
	}
	if s.pod != nil {
		api.put(s.pod)
	}
}

func terminating(o metav1.Object) {
	now := metav1.NewTime(time.Now())
	o.SetDeletionTimestamp(&now)
}

// runsOnce makes it the pod of a job.
func runsOnce(p *corev1.Pod) {
	p.Spec.RestartPolicy = corev1.RestartPolicyOnFailure
	p.Status.ContainerStatuses = []corev1.ContainerStatus{{State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}}
}

// TestWantedByThePod has the same answer whether the informer knew from the start
// or only the API knows by now.
func TestWantedByThePod(t *testing.T) {
	inline := corev1.VolumeSource{CSI: &corev1.CSIVolumeSource{Driver: driverName}}
	for name, tc := range map[string]struct {
		change func(*scene)
		want   string // why not; empty: it is
	}{
		"it is":                           {func(*scene) {}, ""},
		"by a mount point without a name": {func(s *scene) { s.name.directory = "" }, ""},
		"it is going":                     {func(s *scene) { terminating(s.pod) }, "is terminating"},
		"it has succeeded":                {func(s *scene) { s.pod.Status.Phase = corev1.PodSucceeded }, "has ended"},
		"it has failed":                   {func(s *scene) { s.pod.Status.Phase = corev1.PodFailed }, "has ended"},
		"it is pending":                   {func(s *scene) { s.pod.Status.Phase = corev1.PodPending }, ""},
		"it may end, and runs":            {func(s *scene) { runsOnce(s.pod) }, "only a running one shows"},
		"it may end, and has not begun":   {func(s *scene) { s.pod.Spec.RestartPolicy = corev1.RestartPolicyNever }, ""},
		"it runs, and never ends":         {func(s *scene) { runsOnce(s.pod); s.pod.Spec.RestartPolicy = corev1.RestartPolicyAlways }, ""},
		"on another node":                 {func(s *scene) { s.pod.Spec.NodeName = "node-2" }, "not here"},
		"on none yet":                     {func(s *scene) { s.pod.Spec.NodeName = "" }, "not here"},
		"it has no volumes":               {func(s *scene) { s.pod.Spec.Volumes = nil }, "does not list"},
		"it has another claim":            {func(s *scene) { s.pod.Spec.Volumes[0].PersistentVolumeClaim.ClaimName = "x" }, "does not list"},
		"a claim in another namespace":    {func(s *scene) { s.pod.Namespace = "other" }, "does not list"},
		"another claim of that name":      {func(s *scene) { s.claim.UID = "another" }, "does not list"},
		"no claim":                        {func(s *scene) { s.claim = nil }, "does not list"},
		"no volume":                       {func(s *scene) { s.pv = nil }, "does not list"},
		"the volume is free":              {func(s *scene) { s.pv.Spec.ClaimRef = nil }, "does not list"},
		"the volume is another claim's":   {func(s *scene) { s.pv.Spec.ClaimRef.Name = "x" }, "does not list"},
		"a volume of another driver":      {func(s *scene) { s.pv.Spec.CSI.Driver = "x" }, "does not list"},
		"with another handle":             {func(s *scene) { s.pv.Spec.CSI.VolumeHandle = "x" }, "does not list"},
		"of another kind":                 {func(s *scene) { s.pv.Spec.CSI = nil }, "does not list"},
		"a directory of another volume":   {func(s *scene) { s.name.directory = "pv-2" }, "does not list"},
		"generic and ephemeral": {func(s *scene) {
			s.pod.Spec.Volumes[0].VolumeSource = corev1.VolumeSource{Ephemeral: &corev1.EphemeralVolumeSource{}}
			s.claim.Name, s.pv.Spec.ClaimRef.Name = "app-data", "app-data"
		}, ""},
		"generic and ephemeral of another pod": {func(s *scene) {
			s.pod.Spec.Volumes[0].VolumeSource = corev1.VolumeSource{Ephemeral: &corev1.EphemeralVolumeSource{}}
			s.claim.Name, s.pv.Spec.ClaimRef.Name = "app2-data", "app2-data"
		}, "does not list"},
		"inline":              {func(s *scene) { s.pod.Spec.Volumes[0].VolumeSource = inline; s.name.directory = "data" }, ""},
		"inline, another one": {func(s *scene) { s.pod.Spec.Volumes[0].VolumeSource = inline; s.name.directory = "log" }, "does not list"},
		"inline of another driver": {func(s *scene) {
			s.pod.Spec.Volumes[0].VolumeSource = inline
			s.name = volumeName{driver: "x", handle: handle, directory: "data"}
		}, "does not list"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				api, s := newClusterAPI(), newScene()
				tc.change(s)
				s.play(api)
				c, end := following(t, api)
				defer end()
				err := c.wantedNow(t, s.name, "uid-of-app")
				if (err == nil) != (tc.want == "") || err != nil && !strings.Contains(err.Error(), tc.want) {
					t.Errorf("got %v, want %q", err, tc.want)
				}
			})
		})
	}
}

// TestInformerThatLags is overruled by the API itself.
func TestInformerThatLags(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(api *clusterAPI, s *scene)
		want   string // why not; empty: it is wanted
	}{
		"nothing happened":  {func(*clusterAPI, *scene) {}, ""},
		"the pod is going":  {func(api *clusterAPI, s *scene) { terminating(s.pod); api.put(s.pod) }, "is terminating"},
		"it has ended":      {func(api *clusterAPI, s *scene) { s.pod.Status.Phase = corev1.PodFailed; api.put(s.pod) }, "has ended"},
		"it is gone":        {func(api *clusterAPI, s *scene) { api.remove(s.pod) }, "knows no pod with UID"},
		"it is another one": {func(api *clusterAPI, s *scene) { s.pod.UID = "another"; api.put(s.pod) }, "knows no pod with UID"},
		"it may not be read": {func(api *clusterAPI, _ *scene) {
			api.fault = func(string, string) error {
				return apierrors.NewForbidden(schema.GroupResource{Resource: "pods"}, "app", errors.New("no rule"))
			}
		}, "no rule"},
		"we are nobody": {func(api *clusterAPI, _ *scene) {
			api.fault = func(string, string) error { return apierrors.NewUnauthorized("who?") }
		}, "not authenticated"},
		// Silence is no consent, however lately the informer heard of the pod.
		"nobody listens": {func(api *clusterAPI, _ *scene) { api.fault = func(string, string) error { return refused } }, "does not answer"},
		"nobody answers": {func(api *clusterAPI, _ *scene) { api.fault = func(string, string) error { return errSilent } }, "does not answer"},
		"it has no answer": {func(api *clusterAPI, _ *scene) {
			api.fault = func(string, string) error { return apierrors.NewInternalError(errors.New("no etcd")) }
		}, "does not answer"},
		"it has no time now": {func(api *clusterAPI, _ *scene) {
			api.fault = func(string, string) error { return apierrors.NewTooManyRequests("later", 0) }
		}, "does not answer"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				api, s := newClusterAPI(), newScene()
				s.play(api)
				c, end := following(t, api)
				defer end()
				api.set(func(a *clusterAPI) { a.mute = true })
				tc.change(api, s)
				err := c.wantedNow(t, s.name, "uid-of-app")
				if (err == nil) != (tc.want == "") || err != nil && !strings.Contains(err.Error(), tc.want) {
					t.Errorf("got %v, want %q", err, tc.want)
				}
				if err := c.wantedNow(t, s.name, "uid-of-nobody"); err == nil {
					t.Error("a pod that nobody knows wants it")
				}
			})
		})
	}
}

// TestClaimOfANewPod is read anew: another one of that name may have been there before.
func TestClaimOfANewPod(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api, s := newClusterAPI(), newScene()
		s.play(api)
		c, end := following(t, api)
		defer end()
		staged := volumeName{handle: handle}
		if w := c.look(t.Context(), staged, ""); len(w.pods) != 1 {
			t.Fatalf("used by %d pods", len(w.pods))
		}
		api.remove(s.pod)
		api.remove(s.claim)
		s.claim.UID, s.claim.Spec.VolumeName = "another", "pv-2"
		other, _ := aVolume("pv-2")
		other.Spec.ClaimRef.Name, other.Spec.ClaimRef.UID = s.claim.Name, s.claim.UID
		other.Spec.CSI.VolumeHandle = "vol-2"
		s.pod.UID = "uid-of-the-next"
		api.put(s.claim, other, s.pod)
		synctest.Wait()
		if w := c.look(t.Context(), volumeName{handle: "vol-2"}, ""); len(w.pods) != 1 || len(w.volumes) != 1 || w.volumes[0].claim == nil {
			t.Errorf("the next volume: %+v", w)
		}
		expect(t, "the next pod", c.wantedNow(t, volumeName{driver: driverName, handle: "vol-2"}, "uid-of-the-next"), "")
		expect(t, "the volume before", c.wantedNow(t, s.name, "uid-of-the-next"), "does not list")
	})
}
