package cluster

import (
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/client-go/rest"

	"github.com/csi-addons/node-healer/test/harness/kubetest"
)

// clusterConfigOf returns the configuration of the tests' clusters.
func clusterConfigOf(t *testing.T, api *kubetest.API) ClusterConfig {
	t.Helper()
	c, err := NewClientFor(&rest.Config{Host: "http://api.example.com", QPS: -1}, api.HTTPClient())
	if err != nil {
		t.Fatal(err)
	}
	return ClusterConfig{Client: c, Node: kubetest.NodeName, Namespace: "healer", ConfigMap: "settings"}
}

// following runs a cluster in a bubble until all is known that its informers bring,
// and returns a function that ends it.
func followingCluster(t *testing.T, api *kubetest.API) (c *Cluster, end func()) {
	t.Helper()
	c, err := NewCluster(clusterConfigOf(t, api))
	if err != nil {
		t.Fatal(err)
	}
	end = kubetest.Run(t, c.Run)
	c.WaitForSync(t.Context()) // reflectors may wait for a moment before they ask
	return c, end
}

func TestClusterConfig(t *testing.T) {
	good := clusterConfigOf(t, kubetest.NewAPI())
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
				c, err := NewCluster(clusterConfigOf(t, api))
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

// TestClusterEnds: it ends at once whatever the API does, and leaves no goroutine: the
// bubble would not end.
func TestClusterEnds(t *testing.T) {
	for name, fault := range map[string]error{"it works": nil, "connection refused": kubetest.ErrRefused, "no answer": kubetest.ErrNoAnswer} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				api := kubetest.NewAPI()
				api.Put(kubetest.Node())
				_, end := followingCluster(t, api)
				time.Sleep(time.Hour)
				api.Break(fault)
				time.Sleep(time.Hour)
				end()
			})
		})
	}
}
