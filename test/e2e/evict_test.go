package e2e

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/csi-addons/node-healer/pkg/api/v1alpha1"
	"github.com/csi-addons/node-healer/test/harness"
	"github.com/csi-addons/node-healer/test/harness/csidriver"
)

// makeDisks makes the filesystems of two replicas and of a web server.
func (n *Node) makeDisks() {
	n.T.Helper()
	for volume, mkfs := range map[string][]string{
		"db-0": {"mkfs.ext4", "-q", "-e", "remount-ro"}, "db-1": {"mkfs.ext4", "-q", "-e", "remount-ro"}, "web": {"mkfs.xfs", "-q"},
	} {
		image := n.Driver.Image(volume)
		harness.Must(n.T, os.MkdirAll(filepath.Dir(image), 0o755))
		harness.Must(n.T, os.WriteFile(image, nil, 0o600))
		harness.Must(n.T, os.Truncate(image, 320<<20))
		harness.Run(n.T, mkfs[0], append(mkfs[1:], image)...)
	}
}

// newPodsGetTheVolumeStagedAnew has filesystems shut themselves down under pods of a
// StatefulSet, which the controller evicts by itself, and of a Deployment, for a job.
func newPodsGetTheVolumeStagedAnew(t *testing.T, n *Node) {
	t.Helper()
	n.makeDisks()
	n.Cluster.Apply(t, "test/e2e/manifests/disks.yaml")
	db, other, web := n.disk("db-0", "app=db", "db-0"), n.disk("db-1", "app=db", "db-1"), n.disk("web", "app=web", "")
	for _, d := range []*disk{db, other, web} {
		d.writes()
		d.keep()
		name := "check-" + d.volume
		if d == web { // a claim that has a job of that name gets none from the controller
			name = d.automaticJob()
		}
		n.job(name, d.claim(), v1alpha1.ModeCheck, false, v1alpha1.ResultSucceeded, "Healthy")
	}
	n.refusesEviction(db)
	n.Cluster.Kubectl(t, "patch", "configmap/node-healer", "--namespace="+healerNamespace, "--type=merge",
		`--patch={"data":{"evict":"drivers: [`+csidriver.Name+`]\nafter: 0s\n"}}`)

	harness.Must(t, os.WriteFile("/sys/fs/ext4/"+db.device()+"/trigger_fs_error", []byte("the test"), 0))
	begin := time.Now()
	n.replaced(db, begin)
	job := n.ended(db.automaticJob(), v1alpha1.ResultSucceeded, "Healthy")
	t.Logf("its job was made after %v, and %+v", job.CreationTimestamp.Sub(begin), job.Status)
	if job.Spec.Mode != v1alpha1.ModeEvict || job.Spec.DryRun {
		t.Errorf("got %+v", job.Spec)
	}
	n.untainted()
	if raw, err := os.ReadFile("/sys/fs/ext4/" + db.device() + "/errors_count"); err != nil || strings.TrimSpace(string(raw)) != "0" {
		t.Errorf("no fsck has run: %s, %v", raw, err)
	}
	if other.pod().UID != other.uid {
		t.Error("the other replica was replaced")
	}

	harness.Run(t, "xfs_io", "-x", "-c", "shutdown", web.staged())
	// A budget holds, whoever asks.
	job = n.job("budget", "web", v1alpha1.ModeEvict, false, v1alpha1.ResultFailed, "EvictionRefused")
	if !strings.Contains(fmt.Sprint(job.Status.Conditions), "disruption budget") || web.pod().UID != web.uid {
		t.Errorf("got %+v", job.Status)
	}
	n.untainted()
	n.Cluster.Kubectl(t, "patch", "pdb/web", "--type=merge", `--patch={"spec":{"maxUnavailable":1}}`)
	n.allowsEviction()
	n.killsController()
	n.evicts(web, "web")
	other.writes()
	n.arrives(web)
	n.Cluster.Kubectl(t, "patch", "configmap/node-healer", "--namespace="+healerNamespace, "--type=merge", `--patch={"data":{"evict":null}}`)
}

// allowsEviction waits until the web server's budget does.
func (n *Node) allowsEviction() {
	n.T.Helper()
	eventually(n.T, "the budget allows it", func() error {
		_, err := n.Cluster.TryKubectl("wait", "pdb/web", "--for=jsonpath={.status.disruptionsAllowed}=1", "--timeout=10s")
		return err
	})
}

// arrives has a pod with nodeName, which no taint keeps away, come to the node in the middle of
// an eviction: it would have the dead filesystem, and keeps it staged. So the eviction ends. Whether
// the old pod had been evicted before, nobody can tell; the volume stays dead, and all of it goes.
func (n *Node) arrives(d *disk) {
	n.T.Helper()
	// The volume stays staged, and the taint, until the pod has come.
	held, err := os.Open(d.staged())
	harness.Must(n.T, err)
	defer held.Close()
	harness.Run(n.T, "xfs_io", "-x", "-c", "shutdown", d.staged())
	n.allowsEviction()
	pods := n.Cluster.Admin().CoreV1().Pods("default")
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "arrives"}, Spec: d.pod().Spec}
	pod.Spec.NodeName = nodeName
	n.onTaint(func() {
		if _, err := pods.Create(n.T.Context(), pod, metav1.CreateOptions{}); err != nil {
			n.T.Error(err)
		}
	})
	job := n.job("arrives", d.claim(), v1alpha1.ModeEvict, false, v1alpha1.ResultFailed, "EvictionGaveUp")
	if got := fmt.Sprint(job.Status.Conditions); !strings.Contains(got, "pod arrives came to the node meanwhile") {
		n.T.Error(got)
	}
	n.untainted()
	harness.Must(n.T, held.Close())
	n.Cluster.Kubectl(n.T, "delete", "deployment/"+d.volume, "pod/"+pod.Name, "--cascade=foreground", "--timeout=5m")
}

// refusesEviction where no setting allows it.
func (n *Node) refusesEviction(d *disk) {
	n.T.Helper()
	n.job("not-allowed", d.claim(), v1alpha1.ModeEvict, false, v1alpha1.ResultFailed, "EvictionRefused")
}

// evicts has a job evict the pod, which only a dry run had looked at before.
func (n *Node) evicts(d *disk, name string) {
	n.T.Helper()
	job := n.job(name+"-dry-run", d.claim(), v1alpha1.ModeEvict, true, v1alpha1.ResultSucceeded, "WouldEvict")
	if !strings.Contains(fmt.Sprint(job.Status.Conditions), d.pod().Name) || d.pod().UID != d.uid {
		n.T.Errorf("got %+v", job.Status)
	}
	begin := time.Now()
	job = n.job(name+"-evicts", d.claim(), v1alpha1.ModeEvict, false, v1alpha1.ResultSucceeded, "Healthy")
	if nodes := job.Status.Nodes; len(nodes) != 1 || nodes[0].Node != nodeName {
		n.T.Errorf("got %+v", job.Status)
	}
	n.replaced(d, begin)
	n.untainted()
}

// replaced waits for a new pod that writes to the volume, which has kept its data.
func (n *Node) replaced(d *disk, begin time.Time) {
	n.T.Helper()
	eventually(n.T, "another pod of "+d.volume+" runs", func() error {
		pod, err := d.find()
		if err == nil && pod.UID == d.uid {
			err = errors.New("it is the old pod")
		}
		if err == nil {
			d.uid = pod.UID
		}
		return err
	})
	d.writes()
	n.T.Logf("%s: written to again after %v", d.volume, time.Since(begin))
	if kept, err := os.ReadFile(filepath.Join(d.staged(), "kept")); err != nil || string(kept) != d.volume {
		n.T.Errorf("data was lost: %q, %v", kept, err)
	}
}

// untainted waits until the node has no taint of ours.
func (n *Node) untainted() {
	n.T.Helper()
	eventually(n.T, "no taint of ours is left", func() error {
		node, err := n.Cluster.Admin().CoreV1().Nodes().Get(n.T.Context(), nodeName, metav1.GetOptions{})
		if err != nil {
			return err
		}
		for _, taint := range node.Spec.Taints {
			if strings.HasPrefix(taint.Key, "restage.") {
				return fmt.Errorf("the node has the taint %+v", taint)
			}
		}
		return nil
	})
}

// killsController when the next taint stands, in the background.
func (n *Node) killsController() {
	n.onTaint(func() {
		pids, _ := filepath.Glob("/proc/[0-9]*/exe")
		for _, exe := range pids {
			if at, _ := os.Readlink(exe); strings.HasSuffix(at, "/node-healer-controller") {
				var pid int
				if _, err := fmt.Sscanf(exe, "/proc/%d/exe", &pid); err == nil {
					_ = syscall.Kill(pid, syscall.SIGKILL)
				}
			}
		}
	})
}

// onTaint acts when the next taint stands, in the background.
func (n *Node) onTaint(act func()) {
	tainted := func() bool {
		node, err := n.Cluster.Admin().CoreV1().Nodes().Get(n.T.Context(), nodeName, metav1.GetOptions{})
		return err == nil && strings.Contains(fmt.Sprint(node.Spec.Taints), "restage.")
	}
	done := make(chan struct{})
	n.T.Cleanup(func() { <-done })
	go func() {
		defer close(done)
		for !tainted() {
			if n.T.Context().Err() != nil {
				return
			}
			time.Sleep(5 * time.Millisecond)
		}
		act()
	}()
}

// job runs a job to its end.
func (n *Node) job(name, claim string, mode v1alpha1.Mode, dryRun bool, result v1alpha1.Result, reason string) *v1alpha1.VolumeHealJob {
	n.T.Helper()
	jobs := n.Cluster.Dynamic().Resource(v1alpha1.GroupVersion.WithResource("volumehealjobs")).Namespace("default")
	spec := map[string]any{"mode": string(mode), "target": map[string]any{"persistentVolumeClaim": claim}}
	if dryRun {
		spec["dryRun"] = true
	}
	_, err := jobs.Create(n.T.Context(), &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": v1alpha1.GroupVersion.String(), "kind": "VolumeHealJob", "metadata": map[string]any{"name": name}, "spec": spec,
	}}, metav1.CreateOptions{})
	harness.Must(n.T, err)
	return n.ended(name, result, reason)
}

// ended waits for the end of a job.
func (n *Node) ended(name string, result v1alpha1.Result, reason string) *v1alpha1.VolumeHealJob {
	n.T.Helper()
	jobs := n.Cluster.Dynamic().Resource(v1alpha1.GroupVersion.WithResource("volumehealjobs")).Namespace("default")
	job := &v1alpha1.VolumeHealJob{}
	eventually(n.T, "job "+name+" has ended", func() error {
		raw, err := jobs.Get(n.T.Context(), name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		*job = v1alpha1.VolumeHealJob{}
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(raw.Object, job); err != nil {
			return err
		}
		if job.Status.Result == "" {
			return fmt.Errorf("%+v", job.Status)
		}
		return nil
	})
	if got := fmt.Sprint(job.Status.Conditions); job.Status.Result != result || !strings.Contains(got, reason) {
		n.T.Fatalf("%s: want %s, %s; got %+v", name, result, reason, job.Status)
	}
	return job
}

// disk is a volume on a disk, and the pod that uses it.
type disk struct {
	n                *Node
	volume, selector string
	// name is the pod's; empty: the selector's one pod's.
	name string
	uid  types.UID
}

// disk waits for the pod of a volume.
func (n *Node) disk(volume, selector, name string) *disk {
	n.T.Helper()
	d := &disk{n: n, volume: volume, selector: selector, name: name}
	eventually(n.T, "the pod of "+volume+" runs", func() error {
		pod, err := d.find()
		if err == nil {
			d.uid = pod.UID
		}
		return err
	})
	return d
}

func (d *disk) claim() string {
	if d.name != "" {
		return "data-" + d.name
	}
	return d.volume
}

// automaticJob is the name of the job that the controller makes.
func (d *disk) automaticJob() string {
	d.n.T.Helper()
	claim, err := d.n.Cluster.Admin().CoreV1().PersistentVolumeClaims("default").Get(d.n.T.Context(), d.claim(), metav1.GetOptions{})
	harness.Must(d.n.T, err)
	return "evict-" + string(claim.UID)
}

// find returns the pod that runs.
func (d *disk) find() (*corev1.Pod, error) {
	pods, err := d.n.Cluster.Admin().CoreV1().Pods("default").List(d.n.T.Context(), metav1.ListOptions{LabelSelector: d.selector})
	if err != nil {
		return nil, err
	}
	for i := range pods.Items {
		pod := &pods.Items[i]
		if (d.name == "" || pod.Name == d.name) && pod.Status.Phase == corev1.PodRunning && pod.DeletionTimestamp == nil {
			return pod, nil
		}
	}
	return nil, fmt.Errorf("none of %d pods", len(pods.Items))
}

func (d *disk) pod() *corev1.Pod {
	d.n.T.Helper()
	pod, err := d.find()
	harness.Must(d.n.T, err)
	return pod
}

func (d *disk) staged() string {
	return filepath.Join(kubeletRoot, "plugins/kubernetes.io/csi", csidriver.Name, fmt.Sprintf("%x", sha256.Sum256([]byte(d.volume))), "globalmount")
}

// device is the name of the loop device that is staged.
func (d *disk) device() string {
	d.n.T.Helper()
	for _, m := range harness.Mounts(d.n.T, "self") {
		if m.Path == d.staged() {
			return filepath.Base(m.Source)
		}
	}
	d.n.T.Fatalf("%s is not staged", d.volume)
	return ""
}

// log is what was written; empty: it cannot be read.
func (d *disk) log() string {
	raw, _ := os.ReadFile(filepath.Join(d.staged(), "log"))
	return string(raw)
}

// keep writes what has to survive, down to the disk.
func (d *disk) keep() {
	d.n.T.Helper()
	file, err := os.Create(filepath.Join(d.staged(), "kept"))
	harness.Must(d.n.T, err)
	defer file.Close()
	_, err = file.WriteString(d.volume)
	harness.Must(d.n.T, errors.Join(err, file.Sync()))
}

// writes waits until the pod writes.
func (d *disk) writes() {
	d.n.T.Helper()
	before := d.log()
	eventually(d.n.T, "the pod of "+d.volume+" writes", func() error {
		if d.log() == before {
			return errors.New("its log does not grow")
		}
		return nil
	})
}
