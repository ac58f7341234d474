package cluster

import (
	"context"
	"sync"
	"testing"
	"time"

	"k8s.io/client-go/rest"

	"github.com/csi-addons/node-healer/test/harness/kubetest"
)

// configOf returns the PolicyConfig of the tests' policies.
func configOf(t *testing.T, api *kubetest.API) PolicyConfig {
	t.Helper()
	client, err := NewClientFor(&rest.Config{Host: "http://api.example.com", QPS: -1}, api.HTTPClient())
	if err != nil {
		t.Fatal(err)
	}
	cluster, err := NewCluster(ClusterConfig{Client: client, Node: kubetest.NodeName, Namespace: "healer", ConfigMap: "settings"})
	if err != nil {
		t.Fatal(err)
	}
	return PolicyConfig{Cluster: cluster, KubeletRoots: []string{kubeletRoot}, DriverGrace: time.Minute}
}

// following runs a cluster and its policy in a bubble until all is known that the
// informers bring, and returns a function that ends both.
func following(t *testing.T, api *kubetest.API) (p *Policy, end func()) {
	t.Helper()
	p, err := NewPolicy(configOf(t, api))
	if err != nil {
		t.Fatal(err)
	}
	end = kubetest.Run(t, func(ctx context.Context) {
		var both sync.WaitGroup
		both.Go(func() { p.cluster.Run(ctx) })
		both.Go(func() { p.Run(ctx) })
		both.Wait()
	})
	p.cluster.WaitForSync(t.Context()) // reflectors may wait for a moment before they ask
	return p, end
}

// wantedNow asks the API whether the volume is wanted at the mount point of a pod.
func (p *Policy) wantedNow(t *testing.T, name VolumeName, podUID string) error {
	t.Helper()
	w, err := p.ask(t.Context(), name, podUID, false)
	if err != nil {
		return err
	}
	return w.wanted(name, podUID, kubetest.NodeName)
}

// mayWriteNow asks it whether this node may write to the volume's device.
func (p *Policy) mayWriteNow(t *testing.T, name VolumeName) error {
	t.Helper()
	w, err := p.ask(t.Context(), name, "", true)
	if err != nil {
		return err
	}
	return p.mayWrite(t.Context(), w, name)
}

func TestPolicyConfig(t *testing.T) {
	good := configOf(t, kubetest.NewAPI())
	if _, err := NewPolicy(good); err != nil {
		t.Error(err)
	}
	for name, spoil := range map[string]func(*PolicyConfig){
		"no cluster":       func(c *PolicyConfig) { c.Cluster = nil },
		"no kubelet":       func(c *PolicyConfig) { c.KubeletRoots = nil },
		"a negative grace": func(c *PolicyConfig) { c.DriverGrace = -1 },
	} {
		bad := good
		spoil(&bad)
		if _, err := NewPolicy(bad); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}
