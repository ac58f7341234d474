package kube

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/csi-addons/node-healer/test/harness/kubetest"
)

// configOf returns the configuration of the tests' clusters.
func configOf(t *testing.T, api *kubetest.API) ClusterConfig {
	t.Helper()
	c, err := NewClientFor(&rest.Config{Host: "http://api.example.com", QPS: -1}, api.HTTPClient(), "")
	if err != nil {
		t.Fatal(err)
	}
	return ClusterConfig{Client: c, Node: kubetest.NodeName, Namespace: "healer", ConfigMap: "settings"}
}

// following runs a cluster in a bubble until all is known that its informers bring,
// and returns a function that ends it.
func following(t *testing.T, api *kubetest.API) (c *Cluster, end func()) {
	t.Helper()
	c, err := NewCluster(configOf(t, api))
	if err != nil {
		t.Fatal(err)
	}
	end = kubetest.Run(t, c.Run)
	c.WaitForSync(t.Context()) // reflectors may wait for a moment before they ask
	return c, end
}

func TestClusterConfig(t *testing.T) {
	good := configOf(t, kubetest.NewAPI())
	if _, err := NewCluster(good); err != nil {
		t.Error(err)
	}
	for name, spoil := range map[string]func(*ClusterConfig){
		"no client":     func(c *ClusterConfig) { c.Client = nil },
		"no node":       func(c *ClusterConfig) { c.Node = "" },
		"no namespace":  func(c *ClusterConfig) { c.Namespace = "" },
		"no config map": func(c *ClusterConfig) { c.ConfigMap = "" },
	} {
		bad := good
		spoil(&bad)
		if _, err := NewCluster(bad); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

// TestFirstCallsWait: they wait for the first lists, but not for long.
func TestFirstCallsWait(t *testing.T) {
	for name, fault := range map[string]error{"it works": nil, "connection refused": kubetest.ErrRefused, "no answer": kubetest.ErrNoAnswer} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				api := kubetest.NewAPI()
				api.Put(kubetest.Node())
				api.Break(fault)
				c, err := NewCluster(configOf(t, api))
				if err != nil {
					t.Fatal(err)
				}
				go func() {
					c.WaitForSync(t.Context())
					if err := c.pods.listed(); fault == nil && err != nil {
						t.Errorf("the first call does not know: %v", err)
					}
				}()
				synctest.Wait()
				end := kubetest.Run(t, c.Run)
				defer end()
				time.Sleep(requestTimeout)
				synctest.Wait()
				// Later calls do not wait.
				asked := make(chan struct{})
				go func() { defer close(asked); c.WaitForSync(t.Context()) }()
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

// TestRequestsAreShared: a caller that comes while a request is under way does not take
// its result, which may be out of date, and shares the next one with all that wait.
func TestRequestsAreShared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, asked, broken := newReader(nil), 0, errors.New("broken")
		request := func(context.Context) (any, error) { // an error is shared like any answer
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
			if _, err := r.share(ctx, "x", request); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("the first caller, which left: %v", err)
			}
		})
		time.Sleep(2 * time.Millisecond)
		for range 100 {
			all.Go(func() {
				if got, err := r.share(t.Context(), "x", request); got != 2 || !apierrors.IsBadRequest(err) {
					t.Errorf("the callers that came meanwhile: %d, %v", got, err)
				}
			})
		}
		all.Wait()
		if asked != 2 {
			t.Errorf("asked %d times", asked)
		}
	})
}

// TestClusterEnds: it ends at once whatever the API does, and leaves no goroutine: the
// bubble would not end.
func TestClusterEnds(t *testing.T) {
	for name, fault := range map[string]error{"it works": nil, "connection refused": kubetest.ErrRefused, "no answer": kubetest.ErrNoAnswer} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				api := kubetest.NewAPI()
				api.Put(kubetest.Node())
				_, end := following(t, api)
				time.Sleep(time.Hour)
				api.Break(fault)
				time.Sleep(time.Hour)
				end()
			})
		})
	}
}

// TestPodIsStripped: what is kept of a pod tells which volumes it has, and no more.
func TestPodIsStripped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := kubetest.NewAPI()
		_, claim := kubetest.Volume("pv-1")
		pod := kubetest.Pod("app", claim)
		pod.Labels = map[string]string{"a": "b"}
		pod.Spec.Containers = []corev1.Container{{Name: "app", Env: []corev1.EnvVar{{Name: "PASSWORD", Value: "secret"}}}}
		pod.Spec.Volumes = append(pod.Spec.Volumes,
			corev1.Volume{Name: "config", VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{}}},
			corev1.Volume{Name: "host", VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/var/lib/kubelet/plugins/x"}}},
			corev1.Volume{Name: "scratch", VolumeSource: corev1.VolumeSource{Ephemeral: &corev1.EphemeralVolumeSource{}}},
			corev1.Volume{Name: "inline", VolumeSource: corev1.VolumeSource{CSI: &corev1.CSIVolumeSource{
				Driver: kubetest.DriverName, VolumeAttributes: map[string]string{"password": "secret"},
			}}})
		deleted := metav1.NewTime(time.Now())
		pod.DeletionTimestamp = &deleted
		kubetest.RunOnce(pod)
		api.Put(kubetest.Node(), pod)
		c, end := following(t, api)
		defer end()
		got, _ := c.Pod("uid-of-app")
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
		if got.DeletionTimestamp == nil || got.Spec.NodeName != kubetest.NodeName || got.Status.Phase != corev1.PodRunning || !HasRun(got) {
			t.Errorf("too little is kept: %v", got)
		}
	})
}
