package kube

import (
	"context"
	"errors"
	"os"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

func TestClusterConfig(t *testing.T) {
	good := configOf(t, newClusterAPI())
	if _, err := NewCluster(good); err != nil {
		t.Error(err)
	}
	for name, spoil := range map[string]func(*ClusterConfig){
		"no client":        func(c *ClusterConfig) { c.Client = nil },
		"no node":          func(c *ClusterConfig) { c.Node = "" },
		"no namespace":     func(c *ClusterConfig) { c.Namespace = "" },
		"no config map":    func(c *ClusterConfig) { c.ConfigMap = "" },
		"no kubelet":       func(c *ClusterConfig) { c.KubeletRoots = nil },
		"a negative grace": func(c *ClusterConfig) { c.DriverGrace = -1 },
	} {
		bad := good
		spoil(&bad)
		if _, err := NewCluster(bad); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

// TestClusterNeedsEveryAnswer knows what the cluster wants only while it knows all
// that could forbid.
func TestClusterNeedsEveryAnswer(t *testing.T) {
	for _, what := range []string{
		"list pods", "get pods", "get nodes", "get configmaps", "list configmaps",
		"get persistentvolumes", "get persistentvolumeclaims", "get storageclasses",
	} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				api, s := newClusterAPI(), newScene()
				s.pv.Spec.StorageClassName = "fast"
				s.play(api)
				verb, resource, _ := strings.Cut(what, " ")
				api.breaksFor(apierrors.NewForbidden(schema.GroupResource{Resource: resource}, "", errors.New("no rule")), verb, resource)
				c, end := following(t, api)
				defer end()
				err := c.wantedNow(t, s.name, "uid-of-app")
				if what == "list configmaps" {
					expect(t, "it is read", err, "")
				} else {
					expect(t, "then", err, resource)
				}
				api.breaks(nil)
				time.Sleep(time.Hour)
				synctest.Wait()
				expect(t, "all is allowed", c.wantedNow(t, s.name, "uid-of-app"), "")
			})
		})
	}
}

// TestContainerWhileTheAPIIsAway: a running container is proof enough that the mount point
// is wanted, if what the API last said does not forbid it. The strictest word counts,
// and what was never heard is not known.
func TestContainerWhileTheAPIIsAway(t *testing.T) {
	for name, tc := range map[string]struct {
		// before is done before the API goes, late is missed by the informers.
		before func(*disk)
		late   func(*disk)
		// known is true when a step has asked before.
		known bool
		want  string
	}{
		"all was heard":            {known: true},
		"nobody ever asked":        {want: "what the cluster wants is not known"},
		"the claim may be checked": {before: func(d *disk) { d.claim = says(d.claim, "check"); d.api.put(d.claim) }, known: true, want: "mode check by PersistentVolumeClaim"},
		"the cluster is off":       {before: func(d *disk) { d.settings(keyMode, "off") }, known: true, want: "mode off"},
		"the last word was heard by a step only": {late: func(d *disk) {
			d.api.put(says(d.pod, "check"))
		}, known: true, want: "mode check by Pod"},
		"the driver rolls out": {before: (*disk).rollOut, known: true, want: "not been ready"},
		"the node is drained":  {before: (*disk).drain, known: true, want: "drained"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				api := newClusterAPI()
				disk := newDisk(api)
				c, end := following(t, api)
				defer end()
				c.cfg.DriverGrace = time.Hour
				node := &thisHost{t: t, runs: os.Getpid()}
				gate := Gate{Cluster: c, Node: node}
				d, step := node.at(podMountPoint, false)
				if tc.before != nil {
					tc.before(disk)
				}
				if tc.late != nil {
					api.set(func(a *clusterAPI) { a.mute = true })
					tc.late(disk)
				}
				synctest.Wait()
				if tc.known {
					if p, err := gate.Enter(t.Context(), d, step); err == nil {
						p.Leave(nil)
					}
				}
				api.breaks(errSilent)
				time.Sleep(10 * time.Minute)
				p, err := gate.Enter(t.Context(), d, step)
				expect(t, "a step", err, tc.want)
				if err == nil {
					expect(t, "in the middle", p.Revalidate(t.Context()), "")
					p.Leave(nil)
				}
				_, writing := node.at(podMountPoint, true)
				if _, err := gate.Enter(t.Context(), d, writing); err == nil {
					t.Error("a container vouches for no device")
				}
				node.runs = 0
				if _, err := gate.Enter(t.Context(), d, step); err == nil {
					t.Error("silence is no consent")
				}
			})
		})
	}
}

// TestFirstCallsWait until it is known what must not be looked at, or that it
// cannot be known, and for no API for ever.
func TestFirstCallsWait(t *testing.T) {
	for name, fault := range map[string]error{"it works": nil, "nobody listens": refused, "nobody answers": errSilent} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				api := newClusterAPI()
				api.put(aNode())
				api.breaks(fault)
				c, err := NewCluster(configOf(t, api))
				if err != nil {
					t.Fatal(err)
				}
				go func() {
					c.finalized(t.Context())
					if err := c.pods.listed(); fault == nil && err != nil {
						t.Errorf("the first call does not know: %v", err)
					}
				}()
				synctest.Wait()
				end := runs(t, c.Run)
				defer end()
				time.Sleep(askTime)
				synctest.Wait()
				// Now nobody waits any more.
				asked := make(chan struct{})
				go func() { defer close(asked); c.finalized(t.Context()) }()
				synctest.Wait()
				select {
				case <-asked:
				default:
					t.Error("a later call waits too")
				}
			})
		})
	}
}

// TestShared: who comes while a question is under way does not take its answer, which
// may be of before, and shares the next one with all who wait.
func TestShared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, asked, broken := newReader(nil), 0, errors.New("broken")
		question := func(context.Context) (any, error) { // an error is shared like any answer
			asked++
			n := asked
			time.Sleep(time.Second)
			if n == 2 {
				return n, apierrors.NewBadRequest(broken.Error())
			}
			return n, nil
		}
		var all sync.WaitGroup
		all.Go(func() {
			ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
			defer cancel()
			if _, err := r.share(ctx, "x", question); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("the first, who left: %v", err)
			}
		})
		time.Sleep(2 * time.Millisecond)
		for range 100 {
			all.Go(func() {
				if got, err := r.share(t.Context(), "x", question); got != 2 || !apierrors.IsBadRequest(err) {
					t.Errorf("those who came meanwhile: %d, %v", got, err)
				}
			})
		}
		all.Wait()
		if asked != 2 {
			t.Errorf("asked %d times", asked)
		}
	})
}

// TestClusterEnds at once, whatever the API does to it, and leaves nothing
// running: the bubble would not end.
func TestClusterEnds(t *testing.T) {
	for name, fault := range map[string]error{"it works": nil, "nobody listens": refused, "nobody answers": errSilent} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				api := newClusterAPI()
				api.put(aNode())
				_, end := following(t, api)
				time.Sleep(time.Hour)
				api.breaks(fault)
				time.Sleep(time.Hour)
				end()
			})
		})
	}
}

// TestWhatIsKeptOfAPod is what tells which volumes it has, and no more.
func TestWhatIsKeptOfAPod(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := newClusterAPI()
		_, claim := aVolume("pv-1")
		pod := aPod("app", claim)
		pod.Labels = map[string]string{"a": "b"}
		pod.Spec.Containers = []corev1.Container{{Name: "app", Env: []corev1.EnvVar{{Name: "PASSWORD", Value: "secret"}}}}
		pod.Spec.Volumes = append(pod.Spec.Volumes,
			corev1.Volume{Name: "config", VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{}}},
			corev1.Volume{Name: "host", VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/var/lib/kubelet/plugins/x"}}},
			corev1.Volume{Name: "scratch", VolumeSource: corev1.VolumeSource{Ephemeral: &corev1.EphemeralVolumeSource{}}},
			corev1.Volume{Name: "inline", VolumeSource: corev1.VolumeSource{CSI: &corev1.CSIVolumeSource{
				Driver: driverName, VolumeAttributes: map[string]string{"password": "secret"},
			}}})
		deleted := metav1.NewTime(time.Now())
		pod.DeletionTimestamp = &deleted
		runsOnce(pod)
		api.put(aNode(), pod)
		c, end := following(t, api)
		defer end()
		got, _ := c.pod("uid-of-app")
		var names []string
		for _, v := range got.Spec.Volumes {
			names = append(names, v.Name)
		}
		if strings.Join(names, " ") != "data scratch inline" || got.Spec.Volumes[2].CSI.VolumeAttributes != nil {
			t.Errorf("its volumes are %v", got.Spec.Volumes)
		}
		if got.Spec.Containers != nil || got.Labels != nil {
			t.Errorf("too much is kept: %v", got)
		}
		if got.DeletionTimestamp == nil || got.Spec.NodeName != nodeName || got.Status.Phase != corev1.PodRunning || !mayHaveEnded(got) {
			t.Errorf("too little is kept: %v", got)
		}
	})
}
