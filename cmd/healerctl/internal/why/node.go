package why

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"path"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/csi-addons/node-healer/cmd/healerctl/internal/kube"
	"github.com/csi-addons/node-healer/internal/operation"
	"github.com/csi-addons/node-healer/internal/worker"
	"github.com/csi-addons/node-healer/pkg/api/adminpb"
	"github.com/csi-addons/node-healer/pkg/facts/layout"
)

// Node is the node that the program runs on as root.
type Node struct {
	Name string
	// KubeletRoot is kubelet's directory; it may be a symbolic link.
	KubeletRoot string
	// Volumes asks node-healer's server what it saw of the volumes last.
	Volumes func(context.Context) ([]*adminpb.Volume, error)
}

const (
	// nodeTimeout bounds one question to the node: the two looks at its processes are a
	// second apart.
	nodeTimeout = 15 * time.Second
	// maxNamed bounds what is named of one kind.
	maxNamed = 10
)

// onNode asks what only the node knows. All that may hang is read by workers.
func (p *podCase) onNode(ctx context.Context) {
	namespace, err := os.Open("/proc/1/ns/mnt")
	if !p.read("the node", err) {
		return
	}
	defer func() { _ = namespace.Close() }()
	pool, closePool := NewPool(namespace)
	defer closePool(ctx)
	kubelet := layout.Kubelet{Root: p.Node.KubeletRoot}
	waiting, err := Ask(ctx, pool, lookForWaits, string(p.pod.UID))
	p.read("what waits in the kernel", err)
	reading, cancel := context.WithTimeout(ctx, nodeTimeout) // for the arguments of all
	defer cancel()
	for _, w := range waiting {
		p.waits(reading, pool, kubelet, w)
	}
	p.drivers(ctx, pool, kubelet)
	p.conditions(ctx)
	p.leftovers(ctx, pool, kubelet)
}

// NewPool makes workers of this very program, which has to begin with Worker, in a mount namespace;
// nil: our own.
func NewPool(namespace *os.File) (*worker.Pool, func(context.Context)) {
	pool := worker.NewPool(worker.Config{
		Binary: "/proc/self/exe", Namespace: namespace, Env: []string{workerEnv + "=1"}, Max: 4, Idle: 1, Grow: time.Millisecond, KillWait: time.Second,
	})
	return pool, func(ctx context.Context) {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		_ = pool.Close(ctx) // what does not end is left to the kernel
	}
}

// Ask waits for a worker's answer, and no longer than nodeTimeout.
func Ask[Q, A any](ctx context.Context, pool *worker.Pool, op operation.Op[Q, A], q Q) (A, error) {
	ctx, cancel := context.WithTimeout(ctx, nodeTimeout)
	defer cancel()
	return worker.Call(ctx, pool, op, q)
}

// waits says what a process means that waits in the kernel.
func (p *podCase) waits(ctx context.Context, pool *worker.Pool, kubelet layout.Kubelet, w waitingProcess) {
	name := fmt.Sprintf("%s (process %d, state %s)", w.Command, w.PID, w.State)
	where := "in " + cmp.Or(w.Function, "a place that the kernel does not tell")
	toDo := append(adviceOn(w.Function), fmt.Sprintf("on the node: cat /proc/%d/task/%d/stack; in state D the wait ends when the storage answers, and by no signal", w.PID, w.TID))
	switch {
	case w.Program:
		reason, at := "OtherMountHangs", "at a path that could not be read"
		if last, err := Ask(ctx, pool, readArgument, w.PID); err == nil && last != "" {
			at = last
		}
		if p.owns(kubelet, at) {
			reason = "MountHangs"
		}
		p.add(reason, fmt.Sprintf("%s has waited for %s, %s: %s", name, w.Age.Round(time.Second), where, at), toDo...)
	case w.OfPod:
		p.add("ProcessHangs", name+" of this pod waits "+where+", and cannot be ended while it does", toDo...)
	case w.Mounting:
		reason := "OtherMountHangs"
		if p.mounting || p.stopping {
			reason = "MountHangs"
		}
		p.add(reason, name+" mounts or unmounts, and waits "+where+"; the kernel does not tell at which path", toDo...)
	}
}

// owns reports whether a path is one of the pod's, or where one of its volumes is staged.
func (p *podCase) owns(kubelet layout.Kubelet, at string) bool {
	if uid := string(p.pod.UID); uid != "" && strings.Contains(at, uid) {
		return true
	}
	return slices.ContainsFunc(p.volumes, func(v volume) bool {
		staging := path.Dir(kubelet.Staging(v.driver, v.handle))
		return v.handle != "" && (at == staging || strings.HasPrefix(at, staging+"/")) || v.pv != "" && strings.Contains(at+"/", "/"+v.pv+"/")
	})
}

// adviceOn says what to do about a kernel function that waits for storage.
func adviceOn(function string) []string {
	for _, row := range []struct{ functions, advice string }{
		{"request_wait_answer fuse_", "a FUSE daemon does not answer: healerctl list and healerctl check VOLUME-ID on the node name it; kill -CONT PID is the whole cure of one that was stopped"},
		{"percpu_rwsem_wait", "the filesystem may be frozen: see whether a snapshot or backup of it is under way, and wait for that; if none is, fsfreeze --unfreeze PATH, or dmsetup resume of a mapping that dmsetup info calls suspended"},
		{"rpc_wait_bit nfs", "an NFS server does not answer: see the server, and the network in between"},
		{"submit_bio io_schedule bit_wait_io folio_wait", "a block device does not answer: dmesg, and multipath -ll or the storage behind it"},
	} {
		for _, prefix := range strings.Fields(row.functions) {
			if strings.HasPrefix(function, prefix) {
				return []string{row.advice}
			}
		}
	}
	return nil
}

// drivers asks the pod's drivers whether they answer.
func (p *podCase) drivers(ctx context.Context, pool *worker.Pool, kubelet layout.Kubelet) {
	asked := map[string]bool{}
	for _, v := range p.volumes {
		if asked[v.driver] {
			continue
		}
		asked[v.driver] = true
		silent, err := Ask(ctx, pool, askDriver, driverQuery{kubelet, v.driver})
		if p.read("whether driver "+v.driver+" answers", err) && silent != "" {
			p.add("DriverSilent", "driver "+v.driver+" does not answer "+silent, p.driverLog(), keepDriver)
		}
	}
}

// conditions says what the node's own loop saw of the volumes last.
func (p *podCase) conditions(ctx context.Context) {
	seen, err := p.Node.Volumes(ctx)
	p.read("what node-healer saw of the volumes", err)
	for _, s := range seen {
		i := slices.IndexFunc(p.volumes, func(v volume) bool { return v.driver == s.GetDriver() && v.handle == s.GetVolumeId() })
		if i < 0 {
			continue
		}
		says := "claim " + p.volumes[i].claim + ", on this node: " + Health(s)
		if s.GetChecked() != nil {
			says += " (checked " + s.GetChecked().AsTime().Format(time.RFC3339) + ")"
		}
		switch s.GetVerdict() {
		case "healthy", "healed":
		case "abnormal":
			p.add("VolumeUnhealthy", says, fmt.Sprintf("healerctl heal --driver=%s VOLUME-ID (healerctl list has it), which does what is safe, and says what is not", s.GetDriver()))
		default: // it may be sick, and may be not
			if s.GetError() != "" || len(s.GetReasons()) > 0 {
				p.Unread = append(p.Unread, says)
			}
		}
	}
}

// Health returns what was seen of a volume last, in a few words.
func Health(v *adminpb.Volume) string {
	says := cmp.Or(v.GetVerdict(), "not checked yet")
	if v.GetVerdict() == "" && len(v.GetReasons()) > 0 {
		says = "no answer"
	}
	if len(v.GetReasons()) > 0 {
		says += ": " + strings.Join(v.GetReasons(), ", ")
	}
	if v.GetLeft() != "" {
		says += " (left alone: " + v.GetLeft() + ")"
	}
	if v.GetError() != "" {
		says += " (last error: " + v.GetError() + ")"
	}
	return says
}

// leftovers finds what kubelet has of pods that do not exist any more, and of this one once it
// has ended.
func (p *podCase) leftovers(ctx context.Context, pool *worker.Pool, kubelet layout.Kubelet) {
	// The directories first: those of a pod that comes in between are not missed in the API.
	found, err := Ask(ctx, pool, listPods, kubelet.Pods())
	if !p.read("kubelet's directories", err) {
		return
	}
	living := map[string]bool{}
	err = kube.EachMetadata(ctx, p.Client, kube.Pods, "", "spec.nodeName="+p.Node.Name, func(pod *metav1.PartialObjectMetadata) {
		living[string(pod.UID)] = true
		living[pod.Annotations["kubernetes.io/config.hash"]] = true // kubelet's UID of a static pod
	})
	own := string(p.pod.UID)
	runs := slices.ContainsFunc(p.pod.Status.ContainerStatuses, func(c corev1.ContainerStatus) bool { return c.State.Running != nil })
	if p.stopping && len(found[own]) > 0 && !runs {
		p.add("StillMounted", "the pod's containers have ended, and its volumes are still mounted: "+list(found[own]), "on the node: journalctl -u kubelet | grep "+own)
	}
	if !p.read("which pods node "+p.Node.Name+" has", err) {
		return
	}
	var orphaned []string
	for uid, mounts := range found {
		if uid == own || living[uid] {
			continue
		}
		says := uid + ", with nothing mounted in it"
		if len(mounts) > 0 {
			says = uid + ", with " + list(mounts)
		}
		if slices.ContainsFunc(mounts, func(at string) bool { return p.owns(kubelet, at) }) {
			says += ", a volume of this pod"
		}
		orphaned = append(orphaned, says)
	}
	slices.Sort(orphaned)
	if len(orphaned) > 0 {
		p.add("Leftovers", "kubelet has directories of pods that do not exist any more (orphaned pod) in "+kubelet.Pods()+": "+list(orphaned),
			"remove nothing: what is mounted there would be emptied, and a file on the node's disk may be the only copy", "on the node: journalctl -u kubelet | grep UID")
	}
}

// list joins what is named of one kind.
func list(all []string) string {
	if more := len(all) - maxNamed; more > 0 {
		return fmt.Sprintf("%s and %d more", strings.Join(all[:maxNamed], ", "), more)
	}
	return strings.Join(all, ", ")
}
