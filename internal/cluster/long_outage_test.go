package cluster

import (
	"errors"
	"os"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/csi-addons/node-healer/pkg/api/clustersettings"
	"github.com/csi-addons/node-healer/pkg/healer"
	"github.com/csi-addons/node-healer/test/harness/kubetest"
)

// What a step was told last counts while the API does not answer, however long that is (docs/policy.md).
func TestOutageOfMoreThanAnHour(t *testing.T) {
	for name, late := range map[string]func(*disk){
		"pod says check":      func(d *disk) { d.api.Put(says(d.pod, "check")) },
		"settings say off":    func(d *disk) { d.settings(clustersettings.Mode, "off") },
		"node out of service": (*disk).outOfService,
		"pod terminates":      func(d *disk) { kubetest.Terminate(d.pod); d.api.Put(d.pod) }, // with hostPID
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				api := kubetest.NewAPI()
				disk := newDisk(api)
				disk.pod.Spec.HostPID = name == "pod terminates"
				api.Put(disk.pod)
				disk.settings(clustersettings.Mode, "heal")
				c, end := following(t, api)
				defer end()
				node := &thisHost{t: t, runs: os.Getpid()}
				d, step := node.at(podMountPoint, false)
				gate := c.with(node)
				api.Set(func(a *kubetest.API) { a.Stalled = true })
				late(disk)
				synctest.Wait()
				if _, err := gate.Enter(t.Context(), d, step); err == nil {
					t.Fatal("allowed while the API answers")
				}
				api.Break(kubetest.ErrNoAnswer)
				time.Sleep(time.Minute)
				if _, err := gate.Enter(t.Context(), d, step); err == nil {
					t.Fatal("allowed after a minute")
				}
				time.Sleep(cacheTTL)
				if _, err := gate.Enter(t.Context(), d, step); err == nil {
					t.Error("allowed after an hour without an answer")
				}
			})
		})
	}
}

// A process of a pod with hostPID that the API no longer knows shows nothing, although the watch is behind.
func TestPodThatIsGoneWhileTheWatchIsBehind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := kubetest.NewAPI()
		disk := newDisk(api)
		disk.pod.Spec.HostPID = true
		api.Put(disk.pod)
		c, end := following(t, api)
		defer end()
		node := &thisHost{t: t, runs: os.Getpid()}
		d, step := node.at(podMountPoint, false)
		gate := c.with(node)
		api.Set(func(a *kubetest.API) { a.Stalled = true })
		api.Remove(disk.pod)
		synctest.Wait()
		if _, err := gate.Enter(t.Context(), d, step); err == nil {
			t.Fatal("allowed while the API answers")
		}
	})
}

// What a step that writes cannot be told for want of an answer is refused for a moment only.
func TestRuleWithoutAnAnswer(t *testing.T) {
	for _, what := range [][2]string{{"get", "volumeattachments"}, {"list", "volumeattachments"}, {"list", "persistentvolumes"}} {
		t.Run(what[0]+what[1], func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				api := kubetest.NewAPI()
				newDisk(api)
				c, end := following(t, api)
				defer end()
				synctest.Wait()
				node := &thisHost{t: t}
				d, step := node.at(podMountPoint, true)
				api.BreakFor(kubetest.ErrNoAnswer, what[0], what[1])
				_, err := c.with(node).Enter(t.Context(), d, step)
				if healer.RuleOf(err) != healer.RuleAPI {
					t.Errorf("rule %s: %v", healer.RuleOf(err), err)
				}
			})
		})
	}
}

// TestDeletedSettings: when the ConfigMap is deleted, the last settings hold (docs/policy.md).
func TestDeletedSettings(t *testing.T) {
	for _, waits := range []time.Duration{time.Minute, 2 * time.Hour} {
		t.Run(waits.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				api := kubetest.NewAPI()
				disk := newDisk(api)
				disk.settings(clustersettings.Mode, "heal")
				c, end := following(t, api)
				defer end()
				node := &thisHost{t: t, runs: os.Getpid()}
				d, step := node.at(podMountPoint, false)
				gate := c.with(node)
				p, err := gate.Enter(t.Context(), d, step) // reads the ConfigMap
				if err != nil {
					t.Fatal(err)
				}
				p.Leave(nil)
				disk.settings(clustersettings.Mode, "off")
				synctest.Wait()
				_, err = gate.Inspect(t.Context(), d.Case.Volume) // nothing is healed: no step reads the settings again
				expect(t, "a check", err, "mode off")
				time.Sleep(waits)
				_, err = gate.Inspect(t.Context(), d.Case.Volume)
				expect(t, "a check later", err, "mode off")
				api.Remove(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "healer", Name: "settings"}})
				synctest.Wait()
				_, err = gate.Inspect(t.Context(), d.Case.Volume)
				expect(t, "a check after the deletion", err, "mode off")
				_, err = gate.Enter(t.Context(), d, step)
				expect(t, "a step after the deletion", err, "mode off")
			})
		})
	}
}

// A denial is an answer, and nothing is changed then.
func TestDenialOfADriversNamespace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := kubetest.NewAPI()
		newDisk(api)
		daemon := aDaemon(hostPaths(kubeletRoot + "/plugins/" + kubetest.DriverName))
		api.Put(driverNamespace(), daemon)
		c, end := following(t, api)
		defer end()
		synctest.Wait()
		node := &thisHost{t: t}
		d, step := node.at(podMountPoint, false)
		gate := c.with(node)
		p, err := gate.Enter(t.Context(), d, step)
		if err != nil {
			t.Fatal(err)
		}
		p.Leave(nil)
		api.BreakFor(apierrors.NewForbidden(schema.GroupResource{Resource: "namespaces"}, "", errors.New("no rule")), "get", "namespaces")
		p, err = gate.Enter(t.Context(), d, step)
		if err == nil {
			t.Error("allowed, although the namespace may not be read")
			p.Leave(nil)
		}
	})
}
