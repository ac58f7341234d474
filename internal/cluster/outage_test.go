package cluster

import (
	"errors"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/csi-addons/node-healer/pkg/api/clustersettings"
	"github.com/csi-addons/node-healer/pkg/healer"
	"github.com/csi-addons/node-healer/test/harness/kubetest"
)

// TestClusterNeedsEveryAnswer: a step is refused while anything that could forbid it is
// unknown.
func TestClusterNeedsEveryAnswer(t *testing.T) {
	for _, what := range []string{
		"list pods", "get pods", "get nodes", "get configmaps", "list configmaps",
		"get persistentvolumes", "get persistentvolumeclaims", "get storageclasses",
	} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				api, s := kubetest.NewAPI(), newScene()
				s.pv.Spec.StorageClassName = "fast"
				s.play(api)
				verb, resource, _ := strings.Cut(what, " ")
				api.BreakFor(apierrors.NewForbidden(schema.GroupResource{Resource: resource}, "", errors.New("no rule")), verb, resource)
				c, end := following(t, api)
				defer end()
				err := c.wantedNow(t, s.name, "uid-of-app")
				if what == "list configmaps" {
					expect(t, "it is read", err, "")
				} else {
					expect(t, "then", err, resource)
				}
				api.Break(nil)
				time.Sleep(time.Hour)
				synctest.Wait()
				expect(t, "all is allowed", c.wantedNow(t, s.name, "uid-of-app"), "")
			})
		})
	}
}

var outageCases = map[string]struct {
	// before happens before the outage, late is missed by the informers.
	before func(*disk)
	late   func(*disk)
	// known is true when a step has asked before.
	known bool
	want  string
}{
	"all is known":          {known: true},
	"nothing was ever read": {want: "what the cluster wants is not known"},
	"the claim may be checked": {
		before: func(d *disk) { d.claim = says(d.claim, "check"); d.api.Put(d.claim) },
		known:  true,
		want:   "mode check by PersistentVolumeClaim",
	},
	"the cluster is off": {
		before: func(d *disk) { d.settings(clustersettings.Mode, "off") },
		known:  true,
		want:   "mode off",
	},
	"only a step read the last mode": {
		late: func(d *disk) {
			d.api.Put(says(d.pod, "check"))
		},
		known: true,
		want:  "mode check by Pod",
	},
	"the driver rolls out": {before: (*disk).rollOut, known: true, want: "not been ready"},
	"the node is drained":  {before: (*disk).drain, known: true, want: "drained"},
}

// TestContainerDuringAnOutage: a running container proves that the mount point is wanted,
// if what the API last said does not forbid it. The strictest mode counts, and what was
// never read is unknown.
func TestContainerDuringAnOutage(t *testing.T) {
	for name, tc := range outageCases {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				api := kubetest.NewAPI()
				disk := newDisk(api)
				c, end := following(t, api)
				defer end()
				c.cfg.DriverGrace = time.Hour
				node := &thisHost{t: t, runs: os.Getpid()}
				gate := c.with(node)
				d, step := node.at(podMountPoint, false)
				if tc.before != nil {
					tc.before(disk)
				}
				if tc.late != nil {
					api.Set(func(a *kubetest.API) { a.Stalled = true })
					tc.late(disk)
				}
				synctest.Wait()
				if tc.known {
					if p, err := gate.Enter(t.Context(), d, step); err == nil {
						p.Leave(nil)
					}
				}
				api.Break(kubetest.ErrNoAnswer)
				time.Sleep(drainTime / 2)
				p, err := gate.Enter(t.Context(), d, step)
				expect(t, "a step", err, tc.want)
				if err == nil {
					expect(t, "in the middle", p.Revalidate(t.Context()), "")
					p.Leave(nil)
				}
				_, writing := node.at(podMountPoint, true)
				if _, err := gate.Enter(t.Context(), d, writing); err == nil {
					t.Error("a container allowed a write to the device")
				}
				node.runs = 0
				if _, err := gate.Enter(t.Context(), d, step); err == nil {
					t.Error("a step ran without an answer of the API")
				}
			})
		})
	}
}

// TestContainerDuringADenial: a denial is an answer, so what was known before does not
// count, and a running container does not replace it.
func TestContainerDuringADenial(t *testing.T) {
	for _, resource := range []string{"pods", "nodes", "configmaps", "persistentvolumes", "persistentvolumeclaims"} {
		t.Run(resource, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				api := kubetest.NewAPI()
				newDisk(api)
				c, end := following(t, api)
				defer end()
				node := &thisHost{t: t, runs: os.Getpid()}
				gate := c.with(node)
				d, step := node.at(podMountPoint, false)
				p, err := gate.Enter(t.Context(), d, step)
				if err != nil {
					t.Fatal(err)
				}
				p.Leave(nil)
				api.BreakFor(apierrors.NewForbidden(schema.GroupResource{Resource: resource}, "", errors.New("no rule")), "get", resource)
				_, err = gate.Enter(t.Context(), d, step)
				expect(t, "a step", err, resource)
			})
		})
	}
}

// TestOutageOfUnwatchedSettings: what a step read of them may be of long ago, and they may say off
// since.
func TestOutageOfUnwatchedSettings(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := kubetest.NewAPI()
		newDisk(api).settings(clustersettings.Mode, "heal")
		api.BreakFor(apierrors.NewForbidden(schema.GroupResource{Resource: "configmaps"}, "", errors.New("no rule")), "list", "configmaps")
		c, end := following(t, api)
		defer end()
		node := &thisHost{t: t, runs: os.Getpid()}
		gate := c.with(node)
		d, step := node.at(podMountPoint, false)
		p, err := gate.Enter(t.Context(), d, step)
		if err != nil {
			t.Fatal(err)
		}
		p.Leave(nil)
		api.Break(kubetest.ErrNoAnswer)
		_, err = gate.Enter(t.Context(), d, step)
		expect(t, "a step", err, "what the cluster wants is not known")
	})
}

// TestChecksDuringAnOutage: few of them wait for an API that does not answer, also when what was read is of long ago.
func TestChecksDuringAnOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := kubetest.NewAPI()
		newDisk(api)
		c, end := following(t, api)
		defer end()
		check := func() (waited time.Duration) {
			began := time.Now()
			_, err := c.Inspect(t.Context(), healer.Volume{ID: kubetest.Handle, Path: podMountPoint})
			expect(t, "a check", err, "")
			return time.Since(began)
		}
		check()
		api.Break(kubetest.ErrNoAnswer)
		time.Sleep(2 * cacheTTL)
		const checks = 60
		var waited time.Duration
		for range checks {
			waited += check()
			time.Sleep(2 * unavailableTime)
		}
		if waited > checks*requestTimeout/5 {
			t.Errorf("%d checks waited for %s", checks, waited)
		}
	})
}

// TestFaultOfOneObject: what the API cannot read of one object, or not in time, keeps nobody from asking for others.
func TestFaultOfOneObject(t *testing.T) {
	internal := apierrors.NewInternalError(errors.New("unable to transform key"))
	for name, tc := range map[string]struct {
		secret bool
		fault  error
		want   string // why a step is refused then
	}{
		"a Secret that cannot be decrypted": {secret: true, fault: internal},
		"a Secret whose key never comes":    {secret: true, fault: kubetest.ErrNoAnswer},
		"another object":                    {fault: internal},
		"another one that never comes":      {fault: kubetest.ErrNoAnswer, want: "does not answer"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				api := kubetest.NewAPI()
				newDisk(api)
				c, end := following(t, api)
				defer end()
				api.Break(tc.fault)
				read := func() error { _, err := whole(t.Context(), c.reader, classKind, "", "fast"); return err }
				if tc.secret {
					read = func() error { _, err := whole(t.Context(), c.reader, secretKind, "shop", "one"); return err }
				}
				expect(t, "the object", read(), "does not answer")
				api.Break(nil)
				d, step := (&thisHost{t: t}).at(podMountPoint, false)
				_, err := c.Enter(t.Context(), d, step)
				expect(t, "a step", err, tc.want)
			})
		})
	}
}
