package cluster

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/csi-addons/node-healer/pkg/healer"
	"github.com/csi-addons/node-healer/test/harness/kubetest"
)

// TestDrain: on a cordoned node a terminating pod keeps only its own volume from being
// healed, and not for ever.
func TestDrain(t *testing.T) {
	leaves := func(d *disk, claim string, after time.Duration) {
		_, other := kubetest.Volume(claim)
		pod := kubetest.Pod("other", other)
		kubetest.Terminate(pod)
		pod.DeletionTimestamp.Time = pod.DeletionTimestamp.Add(after)
		d.api.Put(pod)
	}
	cordon := func(d *disk) { d.node.Spec.Unschedulable = true; d.api.Put(d.node) }
	for name, tc := range map[string]struct {
		change func(*disk)
		want   string
	}{
		"a cordon":                       {change: cordon},
		"a pod goes":                     {change: func(d *disk) { leaves(d, "pv-1", 0) }},
		"a cordon, and a pod goes":       {change: func(d *disk) { cordon(d); leaves(d, "pv-1", 0) }, want: "pod shop/other, which uses the volume, is terminating"},
		"another volume's pod goes":      {change: func(d *disk) { cordon(d); leaves(d, "pv-2", 0) }},
		"a pod with a long grace period": {change: func(d *disk) { cordon(d); leaves(d, "pv-1", time.Hour) }, want: "being drained"},
		"a pod goes for ever":            {change: func(d *disk) { cordon(d); leaves(d, "pv-1", -drainTime) }},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				api := kubetest.NewAPI()
				d := newDisk(api)
				c, end := following(t, api)
				defer end()
				tc.change(d)
				synctest.Wait()
				node := &thisHost{t: t}
				diagnosis, step := node.at(stagedMountPoint, false)
				permit, err := c.with(node).Enter(t.Context(), diagnosis, step)
				expect(t, "a step", err, tc.want)
				if err != nil && healer.RuleOf(err) != healer.RuleDrain {
					t.Errorf("refused by rule %s", healer.RuleOf(err))
				}
				if err == nil {
					permit.Leave(nil)
				}
			})
		})
	}
}

// TestNoNameOfAnotherNamespace: where two namespaces have a volume with the same handle,
// neither reads the names of the other's objects, whatever they say.
func TestNoNameOfAnotherNamespace(t *testing.T) {
	for name, change := range map[string]func(*corev1.PersistentVolumeClaim, *corev1.Pod){
		"its claim forbids it": func(c *corev1.PersistentVolumeClaim, _ *corev1.Pod) { says(c, "check") },
		"its pod forbids it":   func(_ *corev1.PersistentVolumeClaim, p *corev1.Pod) { says(p, "check") },
		"its pod goes":         func(_ *corev1.PersistentVolumeClaim, p *corev1.Pod) { kubetest.Terminate(p) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				api := kubetest.NewAPI()
				d := newDisk(api)
				pv, claim := kubetest.Volume("pv-2")
				claim.Namespace, pv.Spec.ClaimRef.Namespace = "bakery", "bakery"
				pod := kubetest.Pod("oven", claim)
				claim, pod = claim.DeepCopy(), pod.DeepCopy()
				change(claim, pod)
				d.node.Spec.Unschedulable = true
				api.Put(d.node, pv, claim, pod)
				c, end := following(t, api)
				defer end()
				node := &thisHost{t: t}
				// What is refused at its own target is said to the pods of both, too.
				for _, path := range []string{stagedMountPoint, strings.NewReplacer("app", "oven", "pv-1", "pv-2").Replace(podMountPoint)} {
					diagnosis, step := node.at(path, false)
					_, err := c.with(node).Enter(t.Context(), diagnosis, step)
					expect(t, "a step", err, "of another namespace")
					if err != nil && (strings.Contains(err.Error(), "bakery") || strings.Contains(err.Error(), "oven")) {
						t.Error(err)
					}
				}
			})
		})
	}
}

// TestNoNameOfAnotherNamespaceInAnError: an error about one tenant's object is shown to
// others while the API is not asked again.
func TestNoNameOfAnotherNamespaceInAnError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := kubetest.NewAPI()
		newDisk(api)
		c, end := following(t, api)
		defer end()
		api.Break(kubetest.ErrNoAnswer)
		_, err := get(t.Context(), c.reader, podKind, "bakery", "oven")
		expect(t, "the other one's", err, "does not answer")
		_, shown := c.ask(t.Context(), volumeName{driver: kubetest.DriverName, handle: kubetest.Handle}, "", true)
		expect(t, "this one's", shown, "does not answer")
		if shown != nil && (strings.Contains(shown.Error(), "bakery") || strings.Contains(shown.Error(), "oven")) {
			t.Error(shown)
		}
	})
}
