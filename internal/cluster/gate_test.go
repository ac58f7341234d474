package cluster

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/csi-addons/node-healer/internal/node"
	"github.com/csi-addons/node-healer/pkg/api/clustersettings"
	"github.com/csi-addons/node-healer/pkg/facts"
	"github.com/csi-addons/node-healer/pkg/facts/layout"
	"github.com/csi-addons/node-healer/pkg/healer"
	"github.com/csi-addons/node-healer/test/harness/kubetest"
)

const (
	kubeletRoot      = "/var/lib/kubelet"
	podMountPoint    = kubeletRoot + "/pods/uid-of-app/volumes/kubernetes.io~csi/pv-1/mount"
	stagedMountPoint = kubeletRoot + "/plugins/kubernetes.io/csi/" + kubetest.DriverName + "/0123/globalmount"
)

// thisHost has kubelet's paths, and at most one container.
type thisHost struct {
	t *testing.T
	// runs is the process of a container that has the volume mounted.
	runs int
	// here is what is seen to run in pods, and looks how often that was asked.
	here  []facts.Container
	looks atomic.Int32
	err   error
}

// with has the cluster's gate ask this host.
func (c *Cluster) with(h *thisHost) *Cluster {
	c.cfg.Node = h
	return c
}

func (h *thisHost) Kubelet() layout.Kubelet { return layout.Kubelet{Root: kubeletRoot} }

// RealPath has kubelet's directory configured by a link, too.
func (h *thisHost) RealPath(p string) string {
	if rest, beneath := strings.CutPrefix(p, "/data/kubelet/"); beneath {
		return kubeletRoot + "/" + rest
	}
	return p
}

func (h *thisHost) Holder(context.Context, string, facts.Dev) (*node.Holder, error) {
	if h.runs == 0 || h.err != nil {
		return nil, h.err
	}
	return node.Hold(h.runs), nil
}

func (h *thisHost) InPods(context.Context) ([]facts.Container, error) {
	h.looks.Add(1)
	return h.here, h.err
}

func (h *thisHost) HolderAt(ctx context.Context, m facts.ContainerMount) *node.Holder {
	holder, _ := h.Holder(ctx, m.PodUID, m.Mount.Dev)
	return holder
}

// insideMountPoint is where a container of the pod has the volume.
const insideMountPoint = "/proc/77/root/data"

// at returns a step for a mount point, and the case in which it is offered.
func (h *thisHost) at(path string, writes bool) (healer.Diagnosis, healer.Step) {
	mountPoint := healer.MountPoint{Path: path, Layout: h.Kubelet().Layout(path)}
	mountPoint.PodUID = mountPoint.Layout.PodUID
	if path == insideMountPoint {
		mountPoint.Role, mountPoint.PodUID = healer.RoleContainer, "uid-of-app"
		mountPoint.InContainer = &healer.InContainer{ContainerMount: facts.ContainerMount{
			Container: facts.Container{Workload: facts.Workload{PodUID: "uid-of-app"}, PID: h.runs},
			Mount:     facts.Mount{Dev: facts.Dev{Minor: 50}},
		}}
	}
	d := healer.Diagnosis{
		Case:       healer.Case{Volume: healer.Volume{ID: kubetest.Handle, Path: path}, Driver: kubetest.DriverName, MountPoints: []healer.MountPoint{mountPoint}},
		Conditions: []healer.Condition{{Reason: healer.NotMounted, MountPoint: path, Acute: true}},
	}
	return d, healer.Step{Name: "step", MountPoint: mountPoint, Heals: []healer.Reason{healer.NotMounted}, Source: facts.Dev{Major: 7, Minor: 1}, Writes: writes}
}

// drain cordons the node and terminates the volume's pod.
func (d *disk) drain() {
	d.node.Spec.Unschedulable = true
	kubetest.Terminate(d.pod)
	d.api.Put(d.node, d.pod)
}

// rollOut has the driver's own pod not ready.
func (d *disk) rollOut() {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "driver"}, Spec: corev1.PodSpec{NodeName: kubetest.NodeName}}
	is := true
	pod.OwnerReferences = []metav1.OwnerReference{{Kind: "DaemonSet", Name: "driver", Controller: &is}}
	pod.Spec.Volumes = []corev1.Volume{{Name: "socket"}}
	pod.Spec.Volumes[0].HostPath = &corev1.HostPathVolumeSource{Path: kubeletRoot + "/plugins/" + kubetest.DriverName}
	d.api.Put(pod)
}

// changes are what may happen before a step, or during it, and why the step is then
// refused.
var changes = map[string]struct {
	change func(*disk)
	want   string // why not; empty: it may
	rule   healer.Rule
	// ofWrites is true for what matters only to a step that writes to a device.
	ofWrites bool
}{
	"nothing happens":            {change: func(*disk) {}},
	"the pod goes":               {change: func(d *disk) { kubetest.Terminate(d.pod); d.api.Put(d.pod) }, want: "is terminating", rule: healer.RuleWanted},
	"the pod is gone":            {change: func(d *disk) { d.api.Remove(d.pod) }, want: "no pod", rule: healer.RuleWanted},
	"the claim is another one":   {change: func(d *disk) { d.claim.UID = "another"; d.api.Put(d.claim) }, want: "does not list", rule: healer.RuleWanted},
	"the cluster may only check": {change: func(d *disk) { d.settings(clustersettings.Mode, "check") }, want: "mode check", rule: healer.RuleMode},
	"the cluster is off":         {change: func(d *disk) { d.settings(clustersettings.Mode, "off") }, want: "mode off", rule: healer.RuleMode},
	"the settings are wrong":     {change: func(d *disk) { d.settings("x", "y") }, want: "key x", rule: healer.RuleMode},
	"the claim may only be checked": {change: func(d *disk) {
		d.claim.Annotations = map[string]string{clustersettings.ModeAnnotation: "check"}
		d.api.Put(d.claim)
	}, want: "mode check", rule: healer.RuleMode},
	"the node is drained":     {change: (*disk).drain, want: "drained", rule: healer.RuleDrain},
	"the driver is not ready": {change: (*disk).rollOut, want: "not been ready", rule: healer.RuleDriverGrace},
	"it is left to the driver": {change: func(d *disk) {
		d.settings(clustersettings.SelfRepair, fmt.Sprintf("%s: [%s]", kubetest.DriverName, healer.NotMounted))
	}, want: "is left to driver", rule: healer.RuleSelfRepair},
	"a pod says heal, and the node check": {change: func(d *disk) {
		d.pod.Annotations = map[string]string{clustersettings.ModeAnnotation: "heal"}
		d.node.Annotations = map[string]string{clustersettings.ModeAnnotation: "check"}
		d.api.Put(d.pod, d.node)
	}, want: "mode check by Node", rule: healer.RuleMode},
	"connection refused":       {change: func(d *disk) { d.api.Break(kubetest.ErrRefused) }, want: "does not answer", rule: healer.RuleAPI},
	"no answer":                {change: func(d *disk) { d.api.Break(kubetest.ErrNoAnswer) }, want: "does not answer", rule: healer.RuleAPI},
	"the API is away for long": {change: func(d *disk) { d.api.Break(kubetest.ErrNoAnswer); time.Sleep(2 * time.Hour) }, want: "does not answer", rule: healer.RuleAPI},

	"the volume goes":            {change: func(d *disk) { kubetest.Terminate(d.attached); d.api.Put(d.attached) }, want: "is being deleted", rule: healer.RuleWrite, ofWrites: true},
	"the node is out of service": {change: (*disk).outOfService, want: corev1.TaintNodeOutOfService, rule: healer.RuleDrain},
	"another node has it":        {change: func(d *disk) { d.api.Put(kubetest.Attachment(d.pv, "node-2")) }, want: "node node-2 has", rule: healer.RuleWrite, ofWrites: true},
}

// TestStep asks before a step, and again before its mount point becomes usable.
func TestStep(t *testing.T) {
	for _, path := range []string{podMountPoint, stagedMountPoint, insideMountPoint} {
		for name, tc := range changes {
			for _, writes := range []bool{false, true} {
				want := tc.want
				if !writes && tc.ofWrites {
					want = ""
				}
				t.Run(fmt.Sprintf("%s, %s, writes: %v", filepath.Base(path), name, writes), func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) {
						api := kubetest.NewAPI()
						disk := newDisk(api)
						c, end := following(t, api)
						defer end()
						node := &thisHost{t: t}
						d, step := node.at(path, writes)
						gate := c.with(node)
						p, err := gate.Enter(t.Context(), d, step)
						if err != nil {
							t.Fatal(err)
						}
						defer p.Leave(nil)
						if err := p.Revalidate(t.Context()); err != nil {
							t.Fatal(err)
						}
						tc.change(disk)
						synctest.Wait()
						err = p.Revalidate(t.Context())
						expect(t, "in the middle", err, want)
						if err != nil && !errors.Is(err, healer.ErrRefused) {
							t.Errorf("no refusal, but %v", err)
						}
						q, err := gate.Enter(t.Context(), d, step)
						expect(t, "before", err, want)
						if err != nil && healer.RuleOf(err) != tc.rule {
							t.Errorf("refused by rule %s, want %s: %v", healer.RuleOf(err), tc.rule, err)
						}
						if err == nil {
							q.Leave(nil)
						}
					})
				})
			}
		}
	}
}

// TestChangeWhileTheAPIIsAsked: some of what is asked takes long, and all that may change meanwhile is
// asked after that.
func TestChangeWhileTheAPIIsAsked(t *testing.T) {
	off := func(d *disk) { says(d.claim, "off"); d.api.Put(d.claim) }
	goes := func(d *disk) { kubetest.Terminate(d.pod); d.api.Put(d.pod) }
	denied := func(d *disk) { d.settings(clustersettings.WriteWithoutAttachment, "[]") }
	for name, tc := range map[string]struct {
		slow    string // the request that takes long
		change  func(*disk)
		attach  bool   // the driver does
		step    string // why it is refused
		written string // why a tried write is
	}{
		"the namespace, and the pod goes":             {slow: "/namespaces/storage", change: goes, attach: true, step: "is terminating"},
		"the namespace, and the claim says off":       {slow: "/namespaces/storage", change: off, attach: true, step: "mode off"},
		"volumes, and the pod goes":                   {slow: "/persistentvolumes", change: goes, attach: true, step: "is terminating"},
		"volumes, and the claim says off":             {slow: "/persistentvolumes", change: off, attach: true, step: "mode off", written: "mode off"},
		"attachments, and the claim says off":         {slow: "/volumeattachments", change: off, attach: true, step: "mode off", written: "mode off"},
		"attachments, and the node is out of service": {slow: "/volumeattachments", change: (*disk).outOfService, attach: true, step: "out-of-service", written: "out-of-service"},
		"volumes, and the driver is not allowed":      {slow: "/persistentvolumes", change: denied, step: "attaches no volumes", written: "attaches no volumes"},
	} {
		for _, isStep := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, a step: %v", name, isStep), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					api := &slowAPI{API: kubetest.NewAPI()}
					disk := newDisk(api.API)
					disk.driver(tc.attach)
					disk.settings(clustersettings.WriteWithoutAttachment, "["+kubetest.DriverName+"]")
					api.Put(driverNamespace(), aDaemon(hostPaths(kubeletRoot+"/plugins/"+kubetest.DriverName)))
					c, end := following(t, api)
					defer end()
					synctest.Wait()
					node := &thisHost{t: t}
					d, step := node.at(podMountPoint, true)
					ask, want := func() error { return c.with(node).Write(t.Context(), d.Case, step.MountPoint, true) }, tc.written
					if isStep {
						ask, want = func() error { _, err := c.with(node).Enter(t.Context(), d, step); return err }, tc.step
					}
					expect(t, "before", ask(), "")
					api.Set(func(a *kubetest.API) { a.Stalled = true })
					change := sync.OnceFunc(func() { tc.change(disk) })
					api.wait = func(path string) {
						if strings.HasSuffix(path, tc.slow) {
							change()
							time.Sleep(requestTimeout / 2)
						}
					}
					expect(t, "then", ask(), want)
				})
			})
		}
	}
}

// TestDetachWhileTheRestIsAsked: the attachment is the last thing that is asked before a write to a device.
func TestDetachWhileTheRestIsAsked(t *testing.T) {
	for _, isStep := range []bool{true, false} {
		t.Run(fmt.Sprint("a step: ", isStep), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				api := &slowAPI{API: kubetest.NewAPI()}
				disk := newDisk(api.API)
				disk.driver(true)
				c, end := following(t, api)
				defer end()
				synctest.Wait()
				node := &thisHost{t: t}
				d, step := node.at(podMountPoint, true)
				var listed atomic.Bool
				change := sync.OnceFunc(func() {
					disk.api.Remove(disk.attached)
					disk.api.Put(kubetest.Attachment(disk.pv, "node-2"))
				})
				api.wait = func(path string) {
					if listed.Load() {
						change()
					}
					if strings.HasSuffix(path, "/volumeattachments") {
						listed.Store(true)
					}
				}
				ask := func() error { return c.with(node).Write(t.Context(), d.Case, step.MountPoint, true) }
				if isStep {
					ask = func() error { _, err := c.with(node).Enter(t.Context(), d, step); return err }
				}
				expect(t, "it was listed before", ask(), "was deleted")
			})
		})
	}
}

// TestRolloutWhileTheAPIIsAsked: whether the driver's pod is ready is looked at after all that takes long.
func TestRolloutWhileTheAPIIsAsked(t *testing.T) {
	for _, slow := range []string{"/namespaces/storage", "/persistentvolumes/", "/pods/", "/configmaps/"} {
		t.Run(slow, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				api := &slowAPI{API: kubetest.NewAPI()}
				newDisk(api.API)
				daemon := aDaemon(hostPaths(kubeletRoot + "/plugins/" + kubetest.DriverName))
				api.Put(driverNamespace(), daemon)
				c, end := following(t, api)
				defer end()
				synctest.Wait()
				node := &thisHost{t: t}
				d, step := node.at(podMountPoint, false)
				change := sync.OnceFunc(func() {
					kubetest.Terminate(daemon)
					api.Put(daemon)
				})
				api.wait = func(path string) {
					if strings.Contains(path, slow) {
						change()
						time.Sleep(requestTimeout / 2)
					}
				}
				_, err := c.with(node).Enter(t.Context(), d, step)
				expect(t, "then", err, "has not been ready")
			})
		})
	}
}

// TestListsThatHangTakeNoTurns: the steps that wait for one do not wait for one after the other.
func TestListsThatHangTakeNoTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := kubetest.NewAPI()
		newDisk(api)
		c, end := following(t, api)
		defer end()
		synctest.Wait()
		api.BreakFor(kubetest.ErrNoAnswer, "list", "persistentvolumes")
		node := &thisHost{t: t}
		d, step := node.at(podMountPoint, true)
		gate := c.with(node)
		var all sync.WaitGroup
		began := time.Now()
		for range 8 {
			all.Go(func() {
				_, err := gate.Enter(t.Context(), d, step)
				expect(t, "a step", err, "does not answer")
			})
		}
		all.Wait()
		if took := time.Since(began); took > listTime+requestTimeout {
			t.Errorf("it took %v", took)
		}
		d, step = node.at(podMountPoint, false)
		_, err := gate.Enter(t.Context(), d, step)
		expect(t, "one that needs no list", err, "")
	})
}

// TestStepsDoNotWaitForEachOther, although each asks for the namespace of the driver's pod.
func TestStepsDoNotWaitForEachOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := &slowAPI{API: kubetest.NewAPI()}
		newDisk(api.API)
		api.Put(driverNamespace(), aDaemon(hostPaths(kubeletRoot+"/plugins/"+kubetest.DriverName)))
		c, end := following(t, api)
		defer end()
		synctest.Wait()
		node := &thisHost{t: t, runs: os.Getpid()}
		d, step := node.at(podMountPoint, false)
		gate := c.with(node)
		api.wait = func(path string) {
			if strings.HasSuffix(path, "/namespaces/storage") {
				time.Sleep(time.Second)
			}
		}
		var all sync.WaitGroup
		began := time.Now()
		for range maxParallelReads {
			all.Go(func() {
				_, err := gate.Enter(t.Context(), d, step)
				expect(t, "a step", err, "")
			})
		}
		all.Wait()
		if took := time.Since(began); took > 2*time.Second {
			t.Errorf("%d steps waited for %s", maxParallelReads, took)
		}
	})
}

func expect(t *testing.T, when string, err error, want string) {
	t.Helper()
	if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
		t.Errorf("%s: got %v, want %q", when, err, want)
	}
}

// TestStepForAContainer: a running container counts, whatever the pod's state.
func TestStepForAContainer(t *testing.T) {
	for _, path := range []string{podMountPoint, insideMountPoint} {
		t.Run(filepath.Base(path), func(t *testing.T) { synctest.Test(t, func(t *testing.T) { stepForAContainer(t, path) }) })
	}
}

func stepForAContainer(t *testing.T, path string) {
	t.Helper()
	api := kubetest.NewAPI()
	disk := newDisk(api)
	c, end := following(t, api)
	defer end()
	container := exec.Command("sleep", "600")
	if err := container.Start(); err != nil {
		t.Fatal(err)
	}
	node := &thisHost{t: t, runs: container.Process.Pid}
	d, step := node.at(path, false)
	kubetest.Terminate(disk.pod)
	api.Put(disk.pod)
	p, err := c.with(node).Enter(t.Context(), d, step)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Leave(nil)
	if err := p.Revalidate(t.Context()); err != nil || node.looks.Load() != 0 {
		t.Errorf("%v, and the node was looked at %d times", err, node.looks.Load())
	}
	// A container allows changes of the mount point, not of the device.
	kubetest.Terminate(disk.attached)
	api.Put(disk.attached)
	_, writing := node.at(path, true)
	_, err = c.with(node).Enter(t.Context(), d, writing)
	expect(t, "a step that writes", err, "is being deleted")

	kill := sync.OnceFunc(func() { _ = container.Process.Kill(); _ = container.Wait() })
	api.Set(func(a *kubetest.API) { a.Fault = func(string, string) error { kill(); return nil } })
	expect(t, "the container ends while the API is asked", p.Revalidate(t.Context()), "ended while the API was asked")
	expect(t, "the container has ended", p.Revalidate(t.Context()), "is terminating")
}

// TestStepForWhatIsLeftOfAPod: a process of a pod with hostPID outlives its container, and shows nothing once the pod ends.
func TestStepForWhatIsLeftOfAPod(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(*disk)
		want   string // why a step is refused
	}{
		"it runs":        {change: func(*disk) {}},
		"it terminates":  {func(d *disk) { kubetest.Terminate(d.pod); d.api.Put(d.pod) }, "is terminating"},
		"it has failed":  {func(d *disk) { d.pod.Status.Phase = corev1.PodFailed; d.api.Put(d.pod) }, "has ended"},
		"it is gone":     {func(d *disk) { d.api.Remove(d.pod) }, "no pod"},
		"it is not told": {func(d *disk) { kubetest.Terminate(d.pod); d.api.Put(d.pod); d.api.Break(kubetest.ErrNoAnswer) }, "does not answer"},
	} {
		for _, path := range []string{podMountPoint, stagedMountPoint, insideMountPoint} {
			for _, hostPID := range []bool{true, false} {
				t.Run(fmt.Sprintf("%s, %s, hostPID: %v", name, filepath.Base(path), hostPID), func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) {
						api := kubetest.NewAPI()
						disk := newDisk(api)
						disk.pod.Spec.HostPID = hostPID
						api.Put(disk.pod)
						c, end := following(t, api)
						defer end()
						node := &thisHost{t: t, runs: os.Getpid()}
						d, step := node.at(path, false)
						if path == stagedMountPoint {
							step.MountPoint.Role = healer.RoleStaging
							target, _ := node.at(podMountPoint, false)
							d.Case.MountPoints = append(d.Case.MountPoints, target.Case.MountPoints...)
						}
						p, err := c.with(node).Enter(t.Context(), d, step)
						if err != nil {
							t.Fatal(err)
						}
						defer p.Leave(nil)
						tc.change(disk)
						synctest.Wait()
						want := tc.want
						if !hostPID {
							want = ""
						}
						expect(t, "then", p.Revalidate(t.Context()), want)
					})
				})
			}
		}
	}
}

// TestStepOfAPodThatEnds: that a pod has ended is also seen in the middle of a step.
func TestStepOfAPodThatEnds(t *testing.T) {
	for policy, want := range map[corev1.RestartPolicy]string{corev1.RestartPolicyAlways: "no process here", corev1.RestartPolicyNever: "only a running container"} {
		for _, path := range []string{podMountPoint, stagedMountPoint} {
			t.Run(fmt.Sprintf("%s, %s", policy, filepath.Base(path)), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					api := kubetest.NewAPI()
					disk := newDisk(api)
					kubetest.RunOnce(disk.pod)
					disk.pod.Spec.RestartPolicy = policy
					api.Put(disk.pod)
					another := kubetest.Pod("another", disk.claim)
					another.Spec.Volumes = nil
					api.Put(another)
					c, end := following(t, api)
					defer end()
					other := facts.Container{Workload: facts.Workload{PodUID: "uid-of-another"}}
					node := &thisHost{t: t, here: []facts.Container{other, {Workload: facts.Workload{PodUID: "uid-of-app"}}}}
					d, step := node.at(path, false)
					step.Cost = healer.Restage
					if path == podMountPoint {
						step.Cost = healer.Rebind
					}
					p, err := c.with(node).Enter(t.Context(), d, step)
					if err != nil {
						t.Fatal(err)
					}
					defer p.Leave(nil)
					if err := p.Revalidate(t.Context()); err != nil {
						t.Fatal(err)
					}
					node.here = []facts.Container{other}
					err = p.Revalidate(t.Context())
					expect(t, "its container ended", err, want)
					// A staging path that became bare gets back what was there, unless it is known that no pod wants it:
					// another pod that is known to have ended does not show that.
					ended := kubetest.Pod("ended", disk.claim)
					ended.Status.Phase = corev1.PodFailed
					api.Put(ended)
					for range 20 { // pods come in any order
						if err := p.Revalidate(t.Context()); healer.RuleOf(err) != healer.RuleAPI {
							t.Fatalf("refused by rule %s: %v", healer.RuleOf(err), err)
						}
					}
				})
			})
		}
	}
}

// TestRestageBesideAContainer: a container that has the volume shows that its mount point is wanted, and not that
// another pod wants the volume staged anew.
func TestRestageBesideAContainer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := kubetest.NewAPI()
		disk := newDisk(api)
		kubetest.Terminate(disk.pod)
		job := kubetest.Pod("job", disk.claim)
		kubetest.RunOnce(job)
		api.Put(disk.pod, job)
		c, end := following(t, api)
		defer end()
		node := &thisHost{t: t, runs: os.Getpid(), here: []facts.Container{{Workload: facts.Workload{PodUID: "uid-of-app"}}}}
		d, step := node.at(stagedMountPoint, false)
		step.Cost = healer.Restage
		_, err := c.with(node).Enter(t.Context(), d, step)
		expect(t, "the job has ended", err, "only a running container")
		node.here = append(node.here, facts.Container{Workload: facts.Workload{PodUID: "uid-of-job"}})
		p, err := c.with(node).Enter(t.Context(), d, step)
		if err != nil {
			t.Fatalf("the job runs: %v", err)
		}
		p.Leave(nil)
	})
}

func TestStepAtOtherMountPoints(t *testing.T) {
	for name, tc := range map[string]struct {
		path  string
		blind error
		want  string
	}{
		"no path of kubelet's":         {path: "/mnt/data", want: "none of kubelet's"},
		"an unknown pod":               {path: strings.Replace(podMountPoint, "uid-of-app", "uid-of-unknown", 1), want: "knows no pod"},
		"another volume's directory":   {path: strings.Replace(podMountPoint, "pv-1", "pv-2", 1), want: "does not list"},
		"a pod, and no look at procfs": {path: podMountPoint, blind: errors.New("no procfs")},
		"an unknown pod, and no look at procfs": {
			path: strings.Replace(podMountPoint, "uid-of-app", "uid-of-unknown", 1), blind: errors.New("no procfs"), want: "no procfs",
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				api := kubetest.NewAPI()
				newDisk(api)
				c, end := following(t, api)
				defer end()
				node := &thisHost{t: t, err: tc.blind}
				d, step := node.at(tc.path, false)
				p, err := c.with(node).Enter(t.Context(), d, step)
				expect(t, "before", err, tc.want)
				if err == nil {
					p.Leave(nil)
				}
			})
		})
	}
}

// TestTriedWrite: a tried write needs the mode, and on a disk all that a step which
// writes to it needs.
func TestTriedWrite(t *testing.T) {
	for name, tc := range changes {
		switch name {
		case "the pod goes", "the pod is gone", "the claim is another one", "the node is drained", "the driver is not ready", "it is left to the driver":
			continue // a tried write leaves nothing behind and interferes with nothing
		}
		for _, onDisk := range []bool{false, true} {
			want := tc.want
			if !onDisk && (tc.ofWrites || tc.rule == healer.RuleDrain) {
				want = ""
			}
			t.Run(fmt.Sprintf("%s, on a disk: %v", name, onDisk), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					api := kubetest.NewAPI()
					disk := newDisk(api)
					c, end := following(t, api)
					defer end()
					node := &thisHost{t: t}
					d, _ := node.at(podMountPoint, false)
					gate := c.with(node)
					if err := gate.Write(t.Context(), d.Case, d.Case.MountPoints[0], onDisk); err != nil {
						t.Fatal(err)
					}
					tc.change(disk)
					synctest.Wait()
					expect(t, "then", gate.Write(t.Context(), d.Case, d.Case.MountPoints[0], onDisk), want)
				})
			})
		}
	}
}

// TestInspect: only a mode forbids an inspection: a pod's as soon as the informer has
// it, that of objects read by name within the hour. An outage changes nothing.
func TestInspect(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := kubetest.NewAPI()
		disk := newDisk(api)
		c, end := following(t, api)
		defer end()
		node := &thisHost{t: t}
		gate := c.with(node)
		inspect := func(path, want string) {
			t.Helper()
			synctest.Wait()
			_, err := gate.Inspect(t.Context(), healer.Volume{ID: kubetest.Handle, Path: path})
			expect(t, path, err, want)
		}
		inspect(podMountPoint, "")
		kubetest.Terminate(disk.pod)
		disk.pod.Annotations = map[string]string{clustersettings.ModeAnnotation: "off"}
		api.Put(disk.pod)
		inspect(podMountPoint, "mode off by Pod")
		inspect(stagedMountPoint, "mode off by Pod")
		disk.pod.Annotations = map[string]string{clustersettings.ModeAnnotation: "heal"}
		api.Put(disk.pod)
		inspect(podMountPoint, "")

		disk.claim.Annotations = map[string]string{clustersettings.ModeAnnotation: "off"}
		api.Put(disk.claim)
		inspect(podMountPoint, "") // not read again yet
		d, step := node.at(podMountPoint, false)
		_, err := gate.Enter(t.Context(), d, step)
		expect(t, "a step", err, "mode off by PersistentVolumeClaim")
		for _, path := range []string{podMountPoint, stagedMountPoint, "/mnt/data"} {
			inspect(path, "mode off by PersistentVolumeClaim shop/claim-of-pv-1")
		}
		disk.claim.Annotations = nil
		api.Put(disk.claim)
		inspect(podMountPoint, "mode off by PersistentVolumeClaim")
		time.Sleep(time.Hour)
		inspect(podMountPoint, "")

		disk.claim.Annotations = map[string]string{clustersettings.ModeAnnotation: "off"}
		api.Put(disk.claim)
		time.Sleep(time.Hour)
		inspect(podMountPoint, "mode off by PersistentVolumeClaim")
		api.Break(kubetest.ErrNoAnswer)
		time.Sleep(24 * time.Hour)
		for _, path := range []string{podMountPoint, stagedMountPoint, "/mnt/data"} {
			inspect(path, "mode off by PersistentVolumeClaim shop/claim-of-pv-1")
		}
	})
}

// TestReadersOnly: a volume that drivers are told to stage for readers is meant to be read-only.
func TestReadersOnly(t *testing.T) {
	type modes = []corev1.PersistentVolumeAccessMode
	for name, tc := range map[string]struct {
		modes, twin modes
		handle      string
		unread      bool
		want        bool
	}{
		"for readers":                {modes: modes{corev1.ReadOnlyMany}, want: true},
		"for readers, by two names":  {modes: modes{corev1.ReadOnlyMany}, twin: modes{corev1.ReadOnlyMany}, want: true},
		"its twin is for writers":    {modes: modes{corev1.ReadOnlyMany}, twin: modes{corev1.ReadWriteMany}},
		"readers and writers":        {modes: modes{corev1.ReadOnlyMany, corev1.ReadWriteMany}},
		"claims cannot be read":      {modes: modes{corev1.ReadOnlyMany}, unread: true},
		"one writer":                 {modes: modes{corev1.ReadWriteOnce}},
		"no mode":                    {},
		"another volume's directory": {modes: modes{corev1.ReadOnlyMany}, handle: "another"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				api := kubetest.NewAPI()
				disk := newDisk(api)
				disk.pv.Spec.AccessModes = tc.modes
				api.Put(disk.pv)
				if tc.twin != nil {
					pv, claim := kubetest.Volume("twin")
					pv.Spec.AccessModes = tc.twin
					api.Put(pv)
					api.Put(claim)
					api.Put(kubetest.Pod("app-of-twin", claim))
				}
				if tc.unread {
					api.BreakFor(kubetest.ErrNoAnswer, "get", "persistentvolumeclaims")
				}
				c, end := following(t, api)
				defer end()
				v := healer.Volume{ID: cmp.Or(tc.handle, kubetest.Handle)}
				for _, v.Path = range []string{podMountPoint, stagedMountPoint} {
					if got, err := c.with(&thisHost{t: t}).Inspect(t.Context(), v); got != tc.want || err != nil {
						t.Errorf("%s: %t, %v", v.Path, got, err)
					}
				}
			})
		})
	}
}

// TestIdleNodeSendsFewRequests: inspections of a volume cost a few requests an hour.
func TestIdleNodeSendsFewRequests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := kubetest.NewAPI()
		newDisk(api)
		c, end := following(t, api)
		defer end()
		gate := c.with(&thisHost{t: t})
		count := func() int {
			return api.Count("get persistentvolumes") + api.Count("get persistentvolumeclaims") + api.Count("get storageclasses")
		}
		for range 10 * 60 {
			for _, path := range []string{podMountPoint, stagedMountPoint} {
				_, err := gate.Inspect(t.Context(), healer.Volume{ID: kubetest.Handle, Path: path})
				expect(t, path, err, "")
			}
			time.Sleep(time.Minute)
		}
		if asked := count(); asked > 2*13 { // again after 48 minutes at the earliest
			t.Errorf("it asked %d times in ten hours", asked)
		}
		if asked := api.Count("get nodes") + api.Count("get pods") + api.Count("get configmaps") + api.Count("list persistentvolumes"); asked != 0 {
			t.Errorf("it asked %d times for what it watches or does not need", asked)
		}
	})
}

// TestPodsWithManyClaims: the claims that a tenant's pods list, and that do not exist, cost few requests. Those that are
// not read may be of the volume: no volume passes for one that no pod wants.
func TestPodsWithManyClaims(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := kubetest.NewAPI()
		disk := newDisk(api)
		pv, claim := kubetest.Volume("twin") // with the same handle
		claim.Name, claim.Namespace = "zzz", "tenant"
		pv.Spec.ClaimRef.Name, pv.Spec.ClaimRef.Namespace = "zzz", "tenant"
		twin := kubetest.Pod("app-of-twin", claim)
		api.Put(pv, claim, says(twin, "off"))
		for i := range 20 {
			pod := kubetest.Pod(fmt.Sprint("many", i), claim)
			for j := range maxPodVolumes - 1 {
				pod.Spec.Volumes = append(pod.Spec.Volumes, kubetest.Pod("", &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("none-%d-%d", i, j)}}).Spec.Volumes...)
			}
			pod.Spec.Volumes = pod.Spec.Volumes[1:]
			api.Put(pod)
		}
		c, end := following(t, api)
		defer end()
		node := &thisHost{t: t}
		gate := c.with(node)
		asked := func() int { return api.Count("get persistentvolumeclaims") }
		for range 2 {
			_, err := gate.Inspect(t.Context(), healer.Volume{ID: kubetest.Handle, Path: stagedMountPoint})
			expect(t, "a check", err, "")
		}
		if n := asked(); n > maxSearched+1 {
			t.Errorf("two checks read %d claims", n)
		}
		d, step := node.at(stagedMountPoint, false)
		_, err := gate.Enter(t.Context(), d, step)
		expect(t, "a step", err, "")
		if n, lists := asked(), api.Count("list persistentvolumes"); n > 2*maxSearched || lists > 0 {
			t.Errorf("two checks and a step read %d claims, and listed %d times", n, lists)
		}

		d.Case.Volume.ID = "unknown"
		elsewhere := d.Case.MountPoints[0]
		elsewhere.PodUID = string(disk.pod.UID)
		_, err = gate.Wants(t.Context(), d.Case, elsewhere)
		expect(t, "whether a pod wants a volume that is not found", err, "more than 256 claims")
	})
}

// TestWants: the API has to confirm what the informers say.
func TestWants(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := kubetest.NewAPI()
		disk := newDisk(api)
		c, end := following(t, api)
		defer end()
		node := &thisHost{t: t}
		gate := c.with(node)
		wants := func(when, path string, want bool, unknown string) {
			t.Helper()
			d, _ := node.at(path, false)
			got, err := gate.Wants(t.Context(), d.Case, d.Case.MountPoints[0])
			if got != want || (unknown == "") != (err == nil) || err != nil && !strings.Contains(err.Error(), unknown) {
				t.Errorf("%s: %t, %v", when, got, err)
			}
		}
		wants("it is", podMountPoint, true, "")
		wants("an unknown pod", strings.Replace(podMountPoint, "uid-of-app", "uid-of-unknown", 1), false, "")
		wants("another volume", strings.Replace(podMountPoint, "pv-1", "pv-2", 1), false, "")
		api.Break(kubetest.ErrNoAnswer)
		wants("no answer", podMountPoint, false, "the Kubernetes API does not answer")
		api.Break(nil)
		time.Sleep(time.Hour)
		wants("it is again", podMountPoint, true, "")
		job := disk.pod.DeepCopy()
		job.Spec.RestartPolicy = corev1.RestartPolicyNever
		job.Status.ContainerStatuses = []corev1.ContainerStatus{{State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{}}}}
		api.Put(job)
		wants("a pod that may have ended", podMountPoint, false, "its containers have run")
		api.Put(disk.pod)
		synctest.Wait()
		api.Set(func(a *kubetest.API) { a.Stalled = true })
		kubetest.Terminate(disk.pod)
		api.Put(disk.pod)
		wants("the informer lags", podMountPoint, false, "")
	})
}

// TestStepAfterABoot: what kubelet may be about to publish is left to it, unless a
// container runs.
func TestStepAfterABoot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := kubetest.NewAPI()
		newDisk(api)
		c, end := following(t, api)
		defer end()
		for boot, want := range map[string]string{"this": "", "the one before": "since the node booted"} {
			node := &thisHost{t: t}
			d, step := node.at(podMountPoint, false)
			d.Case.BootID, d.Case.Record = "this", &healer.Record{BootID: boot}
			p, err := c.with(node).Enter(t.Context(), d, step)
			expect(t, boot, err, want)
			if err == nil {
				p.Leave(nil)
			}
			node.runs = os.Getpid()
			if p, err = c.with(node).Enter(t.Context(), d, step); err != nil {
				t.Errorf("a container runs: %v", err)
				continue
			}
			p.Leave(nil)
		}
	})
}

// TestWriteThroughAnotherPod: any pod that uses the volume can forbid a write, as they
// share what is written to.
func TestWriteThroughAnotherPod(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := kubetest.NewAPI()
		disk := newDisk(api)
		other := kubetest.Pod("other", disk.claim)
		other.Annotations = map[string]string{clustersettings.ModeAnnotation: "check"}
		api.Put(other)
		c, end := following(t, api)
		defer end()
		node := &thisHost{t: t}
		gate := c.with(node)
		d, step := node.at(podMountPoint, false)
		p, err := gate.Enter(t.Context(), d, step)
		if err != nil {
			t.Errorf("its mount point is its own: %v", err)
		} else {
			p.Leave(nil)
		}
		for _, onDisk := range []bool{false, true} {
			expect(t, "a write", gate.Write(t.Context(), d.Case, step.MountPoint, onDisk), "other")
		}
		_, writing := node.at(podMountPoint, true)
		_, err = gate.Enter(t.Context(), d, writing)
		expect(t, "a step that writes", err, "other")
	})
}

// TestStepOfACallThatEnded: a step of a cancelled call is refused.
func TestStepOfACallThatEnded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := kubetest.NewAPI()
		newDisk(api)
		c, end := following(t, api)
		defer end()
		node := &thisHost{t: t}
		d, step := node.at(podMountPoint, false)
		p, err := c.with(node).Enter(t.Context(), d, step)
		if err != nil {
			t.Fatal(err)
		}
		defer p.Leave(nil)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		expect(t, "then", p.Revalidate(ctx), context.Canceled.Error())
	})
}
