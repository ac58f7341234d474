package integration

import "github.com/csi-addons/node-healer/test/harness/cluster"

// between makes the member's next server ask its API through a proxy.
func (m *member) between() *cluster.Proxy {
	m.T.Helper()
	p := m.api.Proxy(m.T, m.kubeconfig)
	m.T.Cleanup(func() { m.Stop() })
	m.Args = append(m.Args, "--kubeconfig="+p.Kubeconfig)
	return p
}
