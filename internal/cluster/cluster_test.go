package cluster

import (
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/client-go/rest"

	"github.com/csi-addons/node-healer/test/harness/kubetest"
)

// config is the configuration of the tests' clusters.
func config(t *testing.T) Config {
	return Config{
		Access: &rest.Config{}, NodeName: kubetest.NodeName, Namespace: "healer", ConfigMap: "settings",
		Node: &thisHost{t: t}, DriverGrace: time.Minute,
	}
}

// clusterOf returns a cluster that does not run yet.
func clusterOf(t *testing.T, api http.RoundTripper) *Cluster {
	t.Helper()
	cfg := config(t)
	cfg.Access = &rest.Config{Host: "http://api.example.com", Transport: api}
	c, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// slowAPI is an API that takes its time: before each answer wait is called with the path of the request.
type slowAPI struct {
	*kubetest.API
	wait func(path string)
}

func (s *slowAPI) RoundTrip(r *http.Request) (*http.Response, error) {
	if s.wait != nil {
		s.wait(r.URL.Path)
	}
	return s.API.RoundTrip(r)
}

// following runs a cluster in a bubble until all is known that its informers bring,
// and returns a function that ends it.
func following(t *testing.T, api http.RoundTripper) (c *Cluster, end func()) {
	t.Helper()
	c = clusterOf(t, api)
	end = kubetest.Run(t, c.Run)
	c.waitForSync(t.Context()) // reflectors may wait for a moment before they ask
	return c, end
}

func TestConfig(t *testing.T) {
	good := config(t)
	if _, err := New(good); err != nil {
		t.Error(err)
	}
	for name, spoil := range map[string]func(*Config){
		"no name":          func(c *Config) { c.NodeName = "" },
		"no namespace":     func(c *Config) { c.Namespace = "" },
		"no config map":    func(c *Config) { c.ConfigMap = "" },
		"no node":          func(c *Config) { c.Node = nil },
		"a negative grace": func(c *Config) { c.DriverGrace = -1 },
	} {
		bad := good
		spoil(&bad)
		if _, err := New(bad); err == nil {
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
				c := clusterOf(t, api)
				go func() {
					c.waitForSync(t.Context())
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
				go func() { defer close(asked); c.waitForSync(t.Context()) }()
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
				_, end := following(t, api)
				time.Sleep(time.Hour)
				api.Break(fault)
				time.Sleep(time.Hour)
				end()
			})
		})
	}
}
