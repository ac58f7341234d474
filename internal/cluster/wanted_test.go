package cluster

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/csi-addons/node-healer/pkg/facts"
	"github.com/csi-addons/node-healer/pkg/healer"
	"github.com/csi-addons/node-healer/test/harness/kubetest"
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
	pv, claim := kubetest.Volume("pv-1")
	return &scene{
		pv: pv, claim: claim, pod: kubetest.Pod("app", claim),
		name: volumeName{driver: kubetest.DriverName, handle: kubetest.Handle, directory: "pv-1"},
	}
}

// play puts the objects into the API, except those that are nil.
func (s *scene) play(api *kubetest.API) {
	api.Put(kubetest.Node())
	if s.pv != nil {
		api.Put(s.pv)
	}
	if s.claim != nil {
		api.Put(s.claim)
	}
	if s.pod != nil {
		api.Put(s.pod)
	}
}

// wantedNow asks the API whether the volume is wanted at the mount point of a pod.
func (c *Cluster) wantedNow(t *testing.T, name volumeName, podUID string) error {
	t.Helper()
	w, err := c.ask(t.Context(), name, podUID, false)
	if err != nil {
		return err
	}
	w.here = c.inPods(t.Context())
	return w.wanted(podUID)
}

// TestWantedByThePod: which pods want the volume, where nothing is seen to run in a pod.
func TestWantedByThePod(t *testing.T) {
	inline := corev1.VolumeSource{CSI: &corev1.CSIVolumeSource{Driver: kubetest.DriverName}}
	for name, tc := range map[string]struct {
		change func(*scene)
		want   string // why not; empty: it is
	}{
		"it is":                           {func(*scene) {}, ""},
		"by a mount point without a name": {func(s *scene) { s.name.directory = "" }, ""},
		"it is going":                     {func(s *scene) { kubetest.Terminate(s.pod) }, "is terminating"},
		"it has succeeded":                {func(s *scene) { s.pod.Status.Phase = corev1.PodSucceeded }, "has ended"},
		"it has failed":                   {func(s *scene) { s.pod.Status.Phase = corev1.PodFailed }, "has ended"},
		"it is pending":                   {func(s *scene) { s.pod.Status.Phase = corev1.PodPending }, ""},
		"it may end, and runs":            {func(s *scene) { kubetest.RunOnce(s.pod) }, "only a running container shows"},
		"it may end, and has not begun":   {func(s *scene) { s.pod.Spec.RestartPolicy = corev1.RestartPolicyNever }, ""},
		"it runs, and never ends":         {func(s *scene) { kubetest.RunOnce(s.pod); s.pod.Spec.RestartPolicy = corev1.RestartPolicyAlways }, ""},
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
			s.name = volumeName{driver: "x", handle: kubetest.Handle, directory: "data"}
		}, "does not list"},
		"it has a deadline, and has not run": {func(s *scene) { s.pod.Spec.ActiveDeadlineSeconds = new(int64(60)) }, "only a running container shows"},
		"it has a deadline, and runs": {func(s *scene) {
			kubetest.RunOnce(s.pod)
			s.pod.Spec.RestartPolicy, s.pod.Spec.ActiveDeadlineSeconds = corev1.RestartPolicyAlways, new(int64(60))
		}, "only a running container shows"},
		"a container of it may end, and runs": {func(s *scene) {
			kubetest.RunOnce(s.pod)
			s.pod.Spec.RestartPolicy = corev1.RestartPolicyAlways
			s.pod.Spec.Containers = []corev1.Container{{Name: "app", RestartPolicy: new(corev1.ContainerRestartPolicyNever)}}
		}, "only a running container shows"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				api, s := kubetest.NewAPI(), newScene()
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

// TestWantedByWhatRuns: a container that runs shows that its pod has not ended, and a pod that has run and has no
// process any more may have.
func TestWantedByWhatRuns(t *testing.T) {
	own := facts.Container{Workload: facts.Workload{PodUID: "uid-of-app"}, PID: 77}
	pause := facts.Container{Workload: own.Workload, Pause: true}
	other := facts.Container{Workload: facts.Workload{PodUID: "uid-of-another"}, PID: 78}
	otherPause := func(dir string) facts.Container {
		return facts.Container{Workload: facts.Workload{PodUID: "uid-of-another", Dir: dir}, Pause: true}
	}
	waits := func(p *corev1.Pod) {
		p.Status.ContainerStatuses[0] = corev1.ContainerStatus{RestartCount: 3, State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "CrashLoopBackOff"}}}
	}
	const may, ended = "only a running container shows", "has no process here any more"
	for name, tc := range map[string]struct {
		here   []facts.Container
		err    error
		change func(*corev1.Pod)
		// always and once are why the volume is not wanted by a pod that never ends by itself, and by one that does.
		always, once string
	}{
		"it runs":                         {here: []facts.Container{other, own}},
		"in a user namespace":             {here: []facts.Container{{Workload: own.Workload, Foreign: true}}},
		"only its namespaces are kept":    {here: []facts.Container{pause, other}, once: may},
		"it does not":                     {here: []facts.Container{other}, always: ended, once: may},
		"not all can be seen":             {here: []facts.Container{other, {}}, once: may},
		"not all can be seen, but it can": {here: []facts.Container{own, {}}},
		"no pod can be seen":              {once: may},
		"no pod of the API can be seen":   {here: []facts.Container{{Workload: facts.Workload{PodUID: "uid-of-the-node"}}}, once: may},
		"nothing can be seen":             {err: errors.New("no procfs"), once: may},
		"it has a kernel of its own":      {here: []facts.Container{other}, change: func(p *corev1.Pod) { p.Spec.RuntimeClassName = new("kata") }, once: may},
		"it shares the node's processes":  {here: []facts.Container{own}, change: func(p *corev1.Pod) { p.Spec.HostPID = true }, once: may},
		"it never ran":                    {here: []facts.Container{otherPause("x/y")}, change: func(p *corev1.Pod) { p.Status.ContainerStatuses = nil }},
		"it waits, and runs here":         {here: []facts.Container{own}, change: waits, once: may},
		"it waits, with its namespaces":   {here: []facts.Container{pause}, change: waits, once: may},
		"it waits, without":               {here: []facts.Container{otherPause("x/y")}, change: waits, always: ended, once: may},
		"it waits, in CRI-O":              {here: []facts.Container{otherPause("x/crio-y.scope"), other}, change: waits, once: may},
		"it runs, and is terminating":     {here: []facts.Container{own}, change: func(p *corev1.Pod) { kubetest.Terminate(p) }, always: "is terminating", once: "is terminating"},
	} {
		for policy, want := range map[corev1.RestartPolicy]string{corev1.RestartPolicyAlways: tc.always, corev1.RestartPolicyOnFailure: tc.once} {
			t.Run(fmt.Sprintf("%s, %s", name, policy), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					api, s := kubetest.NewAPI(), newScene()
					kubetest.RunOnce(s.pod)
					s.pod.Spec.RestartPolicy = policy
					if tc.change != nil {
						tc.change(s.pod)
					}
					if policy == corev1.RestartPolicyOnFailure && !hasRun(s.pod) {
						want = ""
					}
					s.play(api)
					another := kubetest.Pod("another", s.claim)
					another.Spec.Volumes = nil
					api.Put(another)
					c, end := following(t, api)
					defer end()
					host := &thisHost{t: t, here: tc.here, err: tc.err}
					c.with(host)
					for _, uid := range []string{"uid-of-app", ""} {
						expect(t, "of pod "+uid, c.wantedNow(t, s.name, uid), want)
					}
					// What is to be judged is only reported: the API's word is enough where it is clear.
					d, _ := host.at(podMountPoint, false)
					wants, err := c.Wants(t.Context(), d.Case, d.Case.MountPoints[0])
					if wants != (want == "" || want == ended) || (err != nil) != (want == may) {
						t.Errorf("Wants: %t, %v", wants, err)
					}
				})
			})
		}
	}
}

// TestMigratedVolume: what an in-tree plugin's PersistentVolume names is known by driver and handle, as kubelet
// writes them into vol_data.json.
func TestMigratedVolume(t *testing.T) {
	const zone = corev1.LabelTopologyZone
	for name, tc := range map[string]struct {
		source         corev1.PersistentVolumeSource
		zone           string
		driver, handle string
	}{
		"EBS":           {corev1.PersistentVolumeSource{AWSElasticBlockStore: &corev1.AWSElasticBlockStoreVolumeSource{VolumeID: "vol-1"}}, "", "ebs.csi.aws.com", "vol-1"},
		"EBS in a zone": {corev1.PersistentVolumeSource{AWSElasticBlockStore: &corev1.AWSElasticBlockStoreVolumeSource{VolumeID: "aws://eu-west-1a/vol-1"}}, "", "ebs.csi.aws.com", "vol-1"},
		"Azure":         {corev1.PersistentVolumeSource{AzureDisk: &corev1.AzureDiskVolumeSource{DataDiskURI: "/a/b"}}, "", "disk.csi.azure.com", "/a/b"},
		"Cinder":        {corev1.PersistentVolumeSource{Cinder: &corev1.CinderPersistentVolumeSource{VolumeID: "a"}}, "", "cinder.csi.openstack.org", "a"},
		"vSphere":       {corev1.PersistentVolumeSource{VsphereVolume: &corev1.VsphereVirtualDiskVolumeSource{VolumePath: "[ds] a.vmdk"}}, "", "csi.vsphere.vmware.com", "[ds] a.vmdk"},
		"Portworx":      {corev1.PersistentVolumeSource{PortworxVolume: &corev1.PortworxVolumeSource{VolumeID: "a"}}, "", "pxd.portworx.com", "a"},
		"Azure file": {
			corev1.PersistentVolumeSource{AzureFile: &corev1.AzureFilePersistentVolumeSource{SecretName: "azure-storage-account-acc-secret", ShareName: "s"}},
			"", "file.csi.azure.com", "#acc#s#pv-1#shop",
		},
		"Azure file, a Secret of one's own": {
			corev1.PersistentVolumeSource{AzureFile: &corev1.AzureFilePersistentVolumeSource{SecretName: "azure-secret", ShareName: "s"}},
			"", "file.csi.azure.com", "#azure-secret#s#pv-1#shop",
		},
		"GCE":           {corev1.PersistentVolumeSource{GCEPersistentDisk: &corev1.GCEPersistentDiskVolumeSource{PDName: "d"}}, "europe-west1-b", "pd.csi.storage.gke.io", "projects/UNSPECIFIED/zones/europe-west1-b/disks/d"},
		"GCE, regional": {corev1.PersistentVolumeSource{GCEPersistentDisk: &corev1.GCEPersistentDiskVolumeSource{PDName: "d"}}, "europe-west1-b__europe-west1-c", "pd.csi.storage.gke.io", "projects/UNSPECIFIED/regions/europe-west1/disks/d"},
		"GCE, nowhere":  {corev1.PersistentVolumeSource{GCEPersistentDisk: &corev1.GCEPersistentDiskVolumeSource{PDName: "d"}}, "", "pd.csi.storage.gke.io", "projects/UNSPECIFIED/zones/UNSPECIFIED/disks/d"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				api, s := kubetest.NewAPI(), newScene()
				s.pv.Spec.PersistentVolumeSource, s.pv.Labels = tc.source, map[string]string{zone: tc.zone}
				says(s.claim, "check")
				s.play(api)
				attached := kubetest.Attachment(s.pv, kubetest.NodeName)
				attached.Spec.Attacher = tc.driver
				api.Put(attached)
				c, end := following(t, api)
				defer end()
				s.name.driver, s.name.handle = tc.driver, tc.handle
				if err := c.wantedNow(t, s.name, "uid-of-app"); err != nil {
					t.Error(err)
				}
				if err := c.mayWriteNow(t, s.name); err != nil {
					t.Error(err)
				}
				s.name.directory = "" // as of a staging path
				w, err := c.ask(t.Context(), s.name, "", true)
				if err != nil || len(w.pods) != 1 || c.mode(w).mode != modeCheck {
					t.Errorf("%v, %d pods, %v", err, len(w.pods), c.mode(w))
				}
				if _, err := c.persistentVolume(t.Context(), healer.Case{Driver: tc.driver, Volume: healer.Volume{ID: tc.handle}}, w); err == nil || !strings.Contains(err.Error(), "in-tree") {
					t.Errorf("what the driver would be told: %v", err)
				}
			})
		})
	}
}

// TestInformerThatLags: the API overrules an informer that lags.
func TestInformerThatLags(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(api *kubetest.API, s *scene)
		want   string // why not; empty: it is wanted
	}{
		"nothing happened":  {func(*kubetest.API, *scene) {}, ""},
		"the pod is going":  {func(api *kubetest.API, s *scene) { kubetest.Terminate(s.pod); api.Put(s.pod) }, "is terminating"},
		"it has ended":      {func(api *kubetest.API, s *scene) { s.pod.Status.Phase = corev1.PodFailed; api.Put(s.pod) }, "has ended"},
		"it is gone":        {func(api *kubetest.API, s *scene) { api.Remove(s.pod) }, "knows no pod with UID"},
		"it is another one": {func(api *kubetest.API, s *scene) { s.pod.UID = "another"; api.Put(s.pod) }, "knows no pod with UID"},
		"it may not be read": {func(api *kubetest.API, _ *scene) {
			api.Fault = func(string, string) error {
				return apierrors.NewForbidden(schema.GroupResource{Resource: "pods"}, "app", errors.New("no rule"))
			}
		}, "no rule"},
		"not authenticated": {func(api *kubetest.API, _ *scene) {
			api.Fault = func(string, string) error { return apierrors.NewUnauthorized("who?") }
		}, "not authenticated"},
		// No answer is no consent, however recent the informer's state is.
		"connection refused": {func(api *kubetest.API, _ *scene) {
			api.Fault = func(string, string) error { return kubetest.ErrRefused }
		}, "does not answer"},
		"no answer": {func(api *kubetest.API, _ *scene) {
			api.Fault = func(string, string) error { return kubetest.ErrNoAnswer }
		}, "does not answer"},
		"it has no answer": {func(api *kubetest.API, _ *scene) {
			api.Fault = func(string, string) error { return apierrors.NewInternalError(errors.New("no etcd")) }
		}, "does not answer"},
		"it has no time now": {func(api *kubetest.API, _ *scene) {
			api.Fault = func(string, string) error { return apierrors.NewTooManyRequests("later", 0) }
		}, "does not answer"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				api, s := kubetest.NewAPI(), newScene()
				s.play(api)
				c, end := following(t, api)
				defer end()
				api.Set(func(a *kubetest.API) { a.Stalled = true })
				tc.change(api, s)
				err := c.wantedNow(t, s.name, "uid-of-app")
				if (err == nil) != (tc.want == "") || err != nil && !strings.Contains(err.Error(), tc.want) {
					t.Errorf("got %v, want %q", err, tc.want)
				}
				if err := c.wantedNow(t, s.name, "uid-of-unknown"); err == nil {
					t.Error("an unknown pod wants it")
				}
			})
		})
	}
}

// TestClaimOfANewPod: its claim is read again, as another one of that name may be cached.
func TestClaimOfANewPod(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api, s := kubetest.NewAPI(), newScene()
		s.play(api)
		c, end := following(t, api)
		defer end()
		staged := volumeName{handle: kubetest.Handle}
		if w := c.recall(t.Context(), staged, ""); len(w.pods) != 1 {
			t.Fatalf("used by %d pods", len(w.pods))
		}
		api.Remove(s.pod)
		api.Remove(s.claim)
		s.claim.UID, s.claim.Spec.VolumeName = "another", "pv-2"
		other, _ := kubetest.Volume("pv-2")
		other.Spec.ClaimRef.Name, other.Spec.ClaimRef.UID = s.claim.Name, s.claim.UID
		other.Spec.CSI.VolumeHandle = "vol-2"
		s.pod.UID = "uid-of-the-next"
		api.Put(s.claim, other, s.pod)
		synctest.Wait()
		if w := c.recall(t.Context(), volumeName{handle: "vol-2"}, ""); len(w.pods) != 1 || len(w.volumes) != 1 || w.volumes[0].claim == nil {
			t.Errorf("the next volume: %+v", w)
		}
		expect(t, "the next pod", c.wantedNow(t, volumeName{driver: kubetest.DriverName, handle: "vol-2"}, "uid-of-the-next"), "")
		expect(t, "the volume before", c.wantedNow(t, s.name, "uid-of-the-next"), "does not list")
	})
}
