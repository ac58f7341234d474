package kube

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

func TestClusterConfig(t *testing.T) {
	good := ClusterConfig{Client: newClusterAPI().client(t), Node: nodeName, Namespace: "a", ConfigMap: "b", Staleness: staleness}
	if _, err := NewCluster(good); err != nil {
		t.Error(err)
	}
	for name, spoil := range map[string]func(*ClusterConfig){
		"no client":        func(c *ClusterConfig) { c.Client = nil },
		"no node":          func(c *ClusterConfig) { c.Node = "" },
		"no namespace":     func(c *ClusterConfig) { c.Namespace = "" },
		"no config map":    func(c *ClusterConfig) { c.ConfigMap = "" },
		"no staleness":     func(c *ClusterConfig) { c.Staleness = 0 },
		"a negative grace": func(c *ClusterConfig) { c.DriverGrace = -1 },
	} {
		bad := good
		spoil(&bad)
		if _, err := NewCluster(bad); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

// TestClusterNeedsEveryList knows what the cluster wants only while it knows all
// that could forbid.
func TestClusterNeedsEveryList(t *testing.T) {
	for resource, needed := range map[string]bool{
		"pods": true, "nodes": true, "persistentvolumes": true, "persistentvolumeclaims": true,
		"storageclasses": true, "configmaps": true,
		// Only a write to a device asks for those of others.
		"volumeattachments": false,
	} {
		t.Run(resource, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				api := newClusterAPI()
				api.put(aNode())
				api.fault = func(verb, of string) error {
					if of == resource && verb != "get" {
						return apierrors.NewForbidden(schema.GroupResource{Resource: resource}, "", errors.New("no rule"))
					}
					return nil
				}
				c, end := following(t, api)
				defer end()
				err := c.current()
				if (err != nil) != needed || needed && !strings.Contains(err.Error(), resource) {
					t.Errorf("got %v", err)
				}
				api.set(func(a *clusterAPI) { a.fault = nil })
				muchLater()
				if err := c.current(); err != nil {
					t.Errorf("all is allowed: %v", err)
				}
			})
		})
	}
}

// TestClusterKeepsWhatItKnew when the API is away, for the time that it counts,
// and what was forbidden for longer.
func TestClusterKeepsWhatItKnew(t *testing.T) {
	for name, fault := range map[string]error{"nobody listens": refused, "nobody answers": errSilent} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				api := newClusterAPI()
				pv, claim := aVolume("pv-1")
				claim.Annotations = map[string]string{modeAnnotation: "off"}
				api.put(aNode(), pv, claim, aPod("app", claim))
				c, end := following(t, api)
				defer end()
				time.Sleep(time.Hour)
				known := func() {
					t.Helper()
					if _, found := c.pod("uid-of-app"); !found {
						t.Error("the pod is forgotten")
					}
					if err := c.rulingOn(c.rules(), volumeName{handle: handle}, "uid-of-app").forbids(modeCheck); err == nil {
						t.Error("the mode is forgotten")
					}
				}
				api.breaks(fault)
				time.Sleep(staleness / 2)
				if err := c.current(); err != nil {
					t.Errorf("it is not known any more: %v", err)
				}
				known()
				time.Sleep(time.Hour)
				if err := c.current(); err == nil || !strings.Contains(err.Error(), "--api-staleness 30s") {
					t.Errorf("after an hour: %v", err)
				}
				known()
				api.breaks(nil)
				muchLater()
				if err := c.current(); err != nil {
					t.Errorf("the API is back: %v", err)
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
				c, err := NewCluster(ClusterConfig{
					Client: api.client(t), Node: nodeName, Namespace: "healer", ConfigMap: "settings", Staleness: staleness,
				})
				if err != nil {
					t.Fatal(err)
				}
				go func() {
					c.settled(t.Context())
					if fault == nil && c.current() != nil {
						t.Errorf("the first call does not know: %v", c.current())
					}
				}()
				synctest.Wait()
				end := runs(t, c.Run)
				defer end()
				time.Sleep(askTime)
				synctest.Wait()
				// Now nobody waits any more.
				asked := make(chan struct{})
				go func() { defer close(asked); c.settled(t.Context()) }()
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
		if got.DeletionTimestamp == nil || got.Spec.NodeName != nodeName || got.Status.Phase != corev1.PodRunning {
			t.Errorf("too little is kept: %v", got)
		}
	})
}
