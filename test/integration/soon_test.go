package integration

import (
	"strings"

	"github.com/csi-addons/node-healer/pkg/api/healerpb"
	"github.com/csi-addons/node-healer/test/harness"
)

// soon asks until the verdict is the wanted one: what costs more than the answer
// is worth is asked about once a second.
func soon(n *harness.Node, verdict string, req *healerpb.NodeHealerRequest) {
	n.T.Helper()
	harness.Eventually(n.T, "the volume is "+verdict, func() bool {
		a, err := n.Call(req)
		return err == nil && strings.HasPrefix(a.GetMessage(), verdict+":")
	})
}
