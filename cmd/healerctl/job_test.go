package main

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/csi-addons/node-healer/pkg/api/v1alpha1"
)

// fakeAPI has one job, and the claims of one namespace.
type fakeAPI struct {
	t *testing.T
	// created is the job that was asked for, status what it has from the second look on.
	created v1alpha1.VolumeHealJob
	status  v1alpha1.VolumeHealJobStatus
	looks   int
	// refuses, if set, is the answer to everything.
	refuses *metav1.Status
	claims  []metav1.PartialObjectMetadata
}

func (f *fakeAPI) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	const jobs = "/apis/node-healer.csi-addons.io/v1alpha1/namespaces/shop/volumehealjobs"
	var answer any
	code := http.StatusOK
	switch path := r.URL.Path; {
	case f.refuses != nil:
		f.refuses.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}
		answer, code = f.refuses, int(f.refuses.Code)
	case r.Method == http.MethodPost && path == jobs:
		if err := json.NewDecoder(r.Body).Decode(&f.created); err != nil {
			f.t.Error(err)
		}
		f.created.Namespace, f.created.Name = "shop", f.created.GenerateName+"x"
		answer, code = f.created, http.StatusCreated
	case path == jobs+"/"+f.created.Name:
		if f.looks++; f.looks > 1 {
			f.created.Status = f.status
		}
		answer = f.created
	case path == "/api/v1/namespaces/shop/persistentvolumeclaims", path == "/api/v1/persistentvolumeclaims":
		if accept := r.Header.Get("Accept"); !strings.Contains(accept, "as=PartialObjectMetadataList") {
			f.t.Errorf("whole claims are read: %s", accept)
		}
		answer = metav1.PartialObjectMetadataList{TypeMeta: metav1.TypeMeta{APIVersion: "meta.k8s.io/v1", Kind: "PartialObjectMetadataList"}, Items: f.claims}
	default:
		http.NotFound(w, r)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	if err := json.NewEncoder(w).Encode(answer); err != nil {
		f.t.Error(err)
	}
}

// serve returns a function that runs the program as one of kubectl's, or as healerctl.
func (f *fakeAPI) serve(program string) func(ctx context.Context, args string) (code int, stdout, stderr string) {
	f.t.Helper()
	s := httptest.NewServer(f)
	s.Config.SetKeepAlivesEnabled(false) // in a bubble no time passes while a connection is open, which a timeout at the instant of a look would leave
	f.t.Cleanup(s.Close)
	kubeconfig := filepath.Join(f.t.TempDir(), "kubeconfig")
	if err := os.WriteFile(kubeconfig, []byte(`{"apiVersion": "v1", "kind": "Config", "current-context": "c", "clusters": [{"name": "c", "cluster": {"server": "`+s.URL+`"}}],
		"contexts": [{"name": "c", "context": {"cluster": "c", "namespace": "shop"}}]}`), 0o600); err != nil {
		f.t.Fatal(err)
	}
	return func(ctx context.Context, args string) (int, string, string) {
		var stdout, stderr bytes.Buffer
		code := run(ctx, append([]string{program}, append(strings.Fields(args), "--kubeconfig="+kubeconfig)...), &stdout, &stderr)
		return code, stdout.String(), stderr.String()
	}
}

func succeeded(reason, message string, abnormal *bool, nodes ...v1alpha1.NodeStatus) v1alpha1.VolumeHealJobStatus {
	return v1alpha1.VolumeHealJobStatus{
		Result: v1alpha1.ResultSucceeded, Abnormal: abnormal, Nodes: nodes, StartTime: ptr.To(metav1.Now()),
		Conditions: []metav1.Condition{{Type: v1alpha1.ConditionComplete, Status: metav1.ConditionTrue, Reason: reason, Message: message}},
	}
}

func failed(reason, message string) v1alpha1.VolumeHealJobStatus {
	return v1alpha1.VolumeHealJobStatus{
		Result: v1alpha1.ResultFailed, StartTime: ptr.To(metav1.Now()),
		Conditions: []metav1.Condition{{Type: v1alpha1.ConditionFailed, Status: metav1.ConditionTrue, Reason: reason, Message: message}},
	}
}

// A job is made, waited for, and said how it ended.
func TestJob(t *testing.T) {
	node := v1alpha1.NodeStatus{Node: "node-1", Abnormal: ptr.To(false), Code: "OK", Tries: 1, Message: "healed: \x1b[2J"}
	for name, tc := range map[string]struct {
		args   string
		status v1alpha1.VolumeHealJobStatus
		mode   v1alpha1.Mode
		code   int
		says   string
	}{
		"healed": {
			args: "heal pvc/data", status: succeeded("Healthy", "it works on node-1", ptr.To(false), node),
			mode: v1alpha1.ModeHeal,
			says: "Succeeded, Healthy: it works on node-1\n" +
				"NODE     ABNORMAL   CODE   TRIES   MESSAGE\n" +
				"node-1   false      OK     1       healed: \\x1b[2J\n",
		},
		"sick": {
			args: "check pvc/data -n shop", status: succeeded("Abnormal", "NotMounted", ptr.To(true)),
			mode: v1alpha1.ModeCheck, code: exitAbnormal, says: "Succeeded, Abnormal: NotMounted\n",
		},
		"dry run": {
			args: "heal --dry-run pvc/data", status: succeeded("NotInUse", "no running pod uses it", nil),
			mode: v1alpha1.ModeCheck, says: "Succeeded, NotInUse: no running pod uses it\n",
		},
		"no claim": {
			args: "heal pvc/data", status: failed("ClaimNotFound", "no claim"),
			mode: v1alpha1.ModeHeal, code: exitNotFound, says: "Failed, ClaimNotFound: no claim\n",
		},
		"no answer": {
			args: "heal pvc/data", status: failed("NodeNotReady", "node-1 is not ready"),
			mode: v1alpha1.ModeHeal, code: exitNoAnswer, says: "Failed, NodeNotReady: node-1 is not ready\n",
		},
		"evicts": {
			args: "heal pvc/data --evict", status: succeeded("Healthy", "node-1: healthy", ptr.To(false)),
			mode: v1alpha1.ModeEvict, says: "Succeeded, Healthy: node-1: healthy\n",
		},
		"would evict": {
			args: "heal pvc/data --evict --dry-run", status: succeeded("WouldEvict", "would evict 1 pods (a)", nil),
			mode: v1alpha1.ModeEvict, says: "Succeeded, WouldEvict: would evict 1 pods (a)\n",
		},
		"evicts nothing": {
			args: "heal pvc/data --evict", status: failed("EvictionRefused", "pod a is static"),
			mode: v1alpha1.ModeEvict, code: exitAbnormal, says: "Failed, EvictionRefused: pod a is static\n",
		},
		"not waited for": {args: "heal pvc/data --wait=false", mode: v1alpha1.ModeHeal, says: "volumehealjob.node-healer.csi-addons.io/heal-data-x created\n"},
	} {
		t.Run(name, func(t *testing.T) {
			f := &fakeAPI{t: t, status: tc.status}
			code, stdout, stderr := f.serve("/x/"+plugin)(t.Context(), tc.args)
			if code != tc.code || stdout != tc.says || stderr != "" {
				t.Errorf("exit code %d\n%s\n%s", code, stdout, stderr)
			}
			if f.created.Spec.DryRun != strings.Contains(tc.args, "--evict --dry-run") || f.created.Spec.Mode != tc.mode ||
				f.created.Spec.Target.PersistentVolumeClaim != "data" || ptr.Deref(f.created.Spec.TTLSecondsAfterFinished, 0) != 3600 {
				t.Errorf("%+v", f.created.Spec)
			}
		})
	}
}

// A wait that ends too early leaves the job.
func TestJobGoesOn(t *testing.T) {
	f := &fakeAPI{t: t, status: v1alpha1.VolumeHealJobStatus{StartTime: ptr.To(metav1.Now()), Nodes: []v1alpha1.NodeStatus{
		{Node: "node-1", Reason: "Abnormal", NextTryTime: &metav1.Time{Time: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)}},
	}}}
	call := f.serve("healerctl")
	synctest.Test(t, func(t *testing.T) {
		code, stdout, stderr := call(t.Context(), "heal pvc/data --timeout=1ms")
		if code != exitNoAnswer || stdout != "" || stderr != "healerctl: job shop/heal-data-x has not ended, no controller has taken it up; it goes on\n" {
			t.Errorf("exit code %d\n%s\n%s", code, stdout, stderr)
		}
		code, _, stderr = call(t.Context(), "heal pvc/data --timeout=2400ms")
		if code != exitNoAnswer || !strings.Contains(stderr, "node-1: Abnormal, tried again at ") {
			t.Errorf("exit code %d\n%s", code, stderr)
		}
	})
}

func TestProgressOfAnEviction(t *testing.T) {
	f := &fakeAPI{t: t, status: v1alpha1.VolumeHealJobStatus{StartTime: ptr.To(metav1.Now()), Conditions: []metav1.Condition{
		{Type: v1alpha1.ConditionProgressing, Status: metav1.ConditionTrue, Reason: "Unstaging", Message: "1 evicted pods have not ended"},
	}}}
	call := f.serve("healerctl")
	synctest.Test(t, func(t *testing.T) {
		code, _, stderr := call(t.Context(), "heal pvc/data --evict --timeout=2400ms")
		if code != exitNoAnswer || !strings.Contains(stderr, "Unstaging: 1 evicted pods have not ended") {
			t.Errorf("exit code %d\n%s", code, stderr)
		}
	})
}

func TestJobRefused(t *testing.T) {
	for name, tc := range map[string]struct {
		args    string
		refuses *metav1.Status
		code    int
		says    string
	}{
		"forbidden": {
			args: "heal pvc/data", refuses: &metav1.Status{Status: metav1.StatusFailure, Code: 403, Reason: metav1.StatusReasonForbidden, Message: "eve cannot create volumehealjobs in shop"},
			code: exitNoAnswer, says: "eve cannot create volumehealjobs in shop",
		},
		"no namespace": {
			args: "heal pvc/data", refuses: &metav1.Status{Status: metav1.StatusFailure, Code: 404, Reason: metav1.StatusReasonNotFound, Message: `namespaces "shop" not found`},
			code: exitNotFound, says: `namespaces "shop" not found`,
		},
		"no controller": {
			args: "heal pvc/data -n other",
			code: exitNoAnswer, says: "the cluster does not know VolumeHealJobs: install the controller (deploy/controller)",
		},
		"no name":         {args: "heal pvc/", code: exitUsage, says: "pvc/: the name of a claim is missing"},
		"a volume's flag": {args: "check pvc/data --driver=d", code: exitUsage, says: "--driver: only with a VOLUME-ID"},
		"a volume's path": {args: "check pvc/data --path=/p", code: exitUsage, says: "--path: only with a VOLUME-ID"},
		"a claim's flag":  {args: "check vol-1 --wait", code: exitUsage, says: "--kubeconfig, --wait: only with pvc/NAME"},
		"no claim":        {args: "heal vol-1 --evict", code: exitUsage, says: "--kubeconfig, --evict: only with pvc/NAME"},
		"both":            {args: "list -A -n shop", code: exitUsage, says: "--all-namespaces and --namespace exclude each other"},
		"no context":      {args: "list -A --context=other", code: exitNoAnswer, says: `context "other" does not exist`},
	} {
		t.Run(name, func(t *testing.T) {
			code, stdout, stderr := (&fakeAPI{t: t, refuses: tc.refuses}).serve("healerctl")(t.Context(), tc.args)
			if code != tc.code || stdout != "" || stderr != "healerctl: "+tc.says+"\n" {
				t.Errorf("exit code %d\n%s\n%s", code, stdout, stderr)
			}
		})
	}
	code, _, stderr := (&fakeAPI{t: t}).serve(plugin)(t.Context(), "watch")
	if code != exitUsage || !strings.Contains(stderr, "kubectl volume-heal: ") {
		t.Errorf("exit code %d\n%s", code, stderr)
	}
}
