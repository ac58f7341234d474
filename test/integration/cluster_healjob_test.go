package integration

import (
	"crypto/tls"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/csi-addons/node-healer/pkg/api/healerpb"
	"github.com/csi-addons/node-healer/pkg/api/v1alpha1"
	"github.com/csi-addons/node-healer/test/harness"
	"github.com/csi-addons/node-healer/test/harness/cluster"
)

// TestVolumeHealJobs runs jobs by the shipped roles, a real gateway and a real server,
// and where something is wrong on the way, says what.
func TestVolumeHealJobs(t *testing.T) {
	j := newJobs(t)
	// Upstream's sidecar registers drivers of the same node.
	registerGateway(t, j.api, thisNode, "rbd.csi.ceph.com", "pod://elsewhere."+ownNamespace+":1", nil)
	for name, test := range map[string]func(*testing.T){
		"heals":                  j.heals,
		"checks":                 j.checks,
		"claim gone":             j.claimGone,
		"not in use":             j.notInUse,
		"not its claim's volume": j.foreignVolume,
		"node down":              j.nodeDown,
		"no gateway":             j.noGateway,
		"another certificate":    j.otherCertificate,
		"stolen token":           j.stolenToken,
		"pod moved":              j.podMoved,
		"spec is immutable":      j.immutable,
		"by hand":                j.byHand,
	} {
		t.Run(name, func(t *testing.T) {
			outer := j.T
			defer func() { j.T = outer }()
			j.T = t
			test(t)
		})
	}
	j.counts(t)
	if log := j.controller.Log.String(); strings.Contains(log, "forbidden") {
		t.Error(log)
	}
	j.noToken(t) // which is forbidden then
}

// counts reads the metrics, with the right to and without.
func (j *jobs) counts(t *testing.T) {
	reader := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
	get := func(token string) (code int, page string) {
		t.Helper()
		request, err := http.NewRequest(http.MethodGet, "https://"+j.controller.Metrics+"/metrics", nil)
		harness.Must(t, err)
		request.Header.Set("Authorization", "Bearer "+token)
		answer, err := reader.Do(request)
		harness.Must(t, err)
		defer answer.Body.Close()
		body, err := io.ReadAll(answer.Body)
		harness.Must(t, err)
		return answer.StatusCode, string(body)
	}
	j.api.Account(t, j.namespace, "reader")
	token := j.api.Token(t, j.namespace, "reader")
	if code, _ := get(token); code != http.StatusForbidden {
		t.Errorf("without the right: %d", code)
	}
	j.api.Account(t, j.namespace, "scraper")
	j.api.Grant(t, j.namespace, "scraper", rbacv1.PolicyRule{NonResourceURLs: []string{"/metrics"}, Verbs: []string{"get"}})
	token = j.api.Token(t, j.namespace, "scraper")
	if code, page := get(token); code != http.StatusOK || !strings.Contains(page, `node_healer_controller_jobs_total{mode="Check",reason="Abnormal",result="Succeeded"} 2`) {
		t.Errorf("%d: %s", code, page)
	}
}

func (j *jobs) heals(t *testing.T) {
	v := j.lost("job-heals")
	job := j.run(newJob(j.namespace, "heals", v.claim.Name))
	j.reports(job, v1alpha1.ResultSucceeded, "Healthy", "healed: ")
	if n := job.Status.Nodes; len(n) != 1 || n[0].Node != thisNode || n[0].Abnormal == nil || *n[0].Abnormal || n[0].Tries != 1 || n[0].Code != "OK" {
		t.Errorf("the nodes are %+v", n)
	}
	if len(harness.Layers(t, v.MountPoint())) != 1 {
		t.Error("the volume is not mounted")
	}
	shown := strings.Fields(j.api.Kubectl(t, "get", "vhj", "-n", j.namespace, "heals", "--no-headers"))
	if want := []string{"heals", v.claim.Name, "Heal", "Succeeded", "false", "1/1"}; len(shown) != 7 || !slices.Equal(shown[:6], want) {
		t.Errorf("kubectl shows %v", shown)
	}
	harness.Eventually(t, "the claim has the event", func() bool {
		events, err := j.api.Admin().EventsV1().Events(j.namespace).List(t.Context(), metav1.ListOptions{FieldSelector: "regarding.name=" + v.claim.Name + ",reportingController=" + controllerName})
		harness.Must(t, err)
		ofJob := slices.DeleteFunc(events.Items, func(e eventsv1.Event) bool { return e.Related == nil || e.Related.UID != job.UID })
		return len(ofJob) == 1 && ofJob[0].Reason == "Healthy"
	})
}

func (j *jobs) checks(t *testing.T) {
	v := j.lost("job-checks")
	job := newJob(j.namespace, "checks", v.claim.Name)
	job.Spec.Mode = v1alpha1.ModeCheck
	job = j.run(job)
	j.reports(job, v1alpha1.ResultSucceeded, "Abnormal", "NotMounted")
	if job.Status.Abnormal == nil || !*job.Status.Abnormal || len(harness.Layers(t, v.MountPoint())) != 0 {
		t.Errorf("got %+v", job.Status)
	}
}

func (j *jobs) claimGone(*testing.T) {
	j.reports(j.run(newJob(j.namespace, "gone", "no-such-claim")), v1alpha1.ResultFailed, "ClaimNotFound", "no-such-claim")
}

func (j *jobs) notInUse(t *testing.T) {
	claim, pod := j.used("unused", thisNode)
	cluster.Delete(t, j.api, pod)
	j.reports(j.run(newJob(j.namespace, "unused", claim)), v1alpha1.ResultSucceeded, "NotInUse", "no running pod")
}

// foreignVolume has a claim that names a volume which is bound to another one.
func (j *jobs) foreignVolume(t *testing.T) {
	j.used("theirs", thisNode)
	claim := &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: j.namespace, Name: "thief"},
		Spec: corev1.PersistentVolumeClaimSpec{
			AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}, VolumeName: "pv-theirs", StorageClassName: ptr.To(""),
			Resources: corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}},
		},
	}
	cluster.Create(t, j.api, claim)
	cluster.Create(t, j.api, cluster.Pod(j.namespace, "app-thief", thisNode, "thief"))
	j.reports(j.run(newJob(j.namespace, "thief", "thief")), v1alpha1.ResultFailed, "ClaimNotBound", "pv-theirs")
}

func (j *jobs) nodeDown(t *testing.T) {
	down := cluster.Node("node-down")
	down.Status.Conditions[0].Status = corev1.ConditionUnknown
	cluster.Create(t, j.api, down)
	claim, _ := j.used("down", down.Name)
	j.reports(j.run(newJob(j.namespace, "down", claim)), v1alpha1.ResultFailed, "NodeNotReady", "node-down is not ready")
}

func (j *jobs) noGateway(t *testing.T) {
	cluster.Create(t, j.api, cluster.Node("node-bare"))
	claim, _ := j.used("bare", "node-bare")
	j.reports(j.run(newJob(j.namespace, "bare", claim)), v1alpha1.ResultFailed, "GatewayNotRegistered", "node-bare")
}

// otherCertificate has another server where the gateway was registered.
func (j *jobs) otherCertificate(t *testing.T) {
	heard := false
	g := newFakeGateway(t, j.api, "node-fooled", func(*healerpb.NodeHealerRequest, <-chan struct{}) error { heard = true; return nil })
	g.register(newServerCertificate(t))
	claim, _ := j.used("fooled", "node-fooled")
	j.reports(j.run(newJob(j.namespace, "fooled", claim)), v1alpha1.ResultFailed, "GatewayUnreachable", "handshake failed: tls: failed to verify certificate")
	if heard {
		t.Error("it was called")
	}
}

// podMoved moves the pod while its node is called.
func (j *jobs) podMoved(t *testing.T) {
	claim, pod := j.used("moving", "node-from")
	newFakeGateway(t, j.api, "node-from", func(*healerpb.NodeHealerRequest, <-chan struct{}) error {
		cluster.Delete(t, j.api, pod)
		cluster.Create(t, j.api, cluster.Pod(j.namespace, "app-moving-again", "node-to", claim))
		return status.Error(codes.NotFound, "volume_path: is not there")
	})
	newFakeGateway(t, j.api, "node-to", func(*healerpb.NodeHealerRequest, <-chan struct{}) error { return nil })
	job := j.run(newJob(j.namespace, "moving", claim))
	j.reports(job, v1alpha1.ResultSucceeded, "Healthy", "node-to")
	if !job.Status.Moved || len(job.Status.Nodes) != 1 || job.Status.Nodes[0].Tries != 1 {
		t.Errorf("got %+v", job.Status)
	}
}

func (j *jobs) immutable(t *testing.T) {
	j.run(newJob(j.namespace, "immutable", "no-such-claim"))
	out, err := j.api.TryKubectl("patch", "vhj", "-n", j.namespace, "immutable", "--type=merge", `--patch={"spec":{"mode":"Check"}}`)
	if err == nil || !strings.Contains(out, "cannot be changed") {
		t.Errorf("got %v: %s", err, out)
	}
	out, err = j.api.TryKubectl("create", "--dry-run=server", "-n", j.namespace, "-f", writeManifest(t, `{"apiVersion": "node-healer.csi-addons.io/v1alpha1",
		"kind": "VolumeHealJob", "metadata": {"name": "x"}, "spec": {"target": {"persistentVolumeClaim": "c"}, "backoffLimit": 61}}`))
	if err == nil || !strings.Contains(out, "less than or equal to 60") {
		t.Errorf("got %v: %s", err, out)
	}
}

func writeManifest(t *testing.T, text string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "manifest.json")
	harness.Must(t, os.WriteFile(file, []byte(text), 0o600))
	return file
}
