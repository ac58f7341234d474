package integration

import (
	"strings"
	"testing"

	"github.com/csi-addons/node-healer/pkg/api/healerpb"
	"github.com/csi-addons/node-healer/test/harness"
)

// TestCallersSecretsReachNoProgram: a vendor's provider hands the secrets of a call to its program,
// as its page allows. In a cluster there are none to hand over, whoever calls; where the caller
// vouches, the program has them on its standard input and nowhere else.
func TestCallersSecretsReachNoProgram(t *testing.T) {
	hello := harness.NewHello(t)
	heal := func(n *harness.Node, r *healerpb.NodeHealerRequest) (given string) {
		t.Helper()
		r.Secrets = map[string]string{"userKey": oddSecret}
		r.VolumeContext = map[string]string{"secretish": oddSecret}
		n.Expect("healthy", r)
		hello.Says(r.GetVolumeId(), "lost")
		n.Expect("healed", r, "HelloSessionLost", "hello-again")
		keptNothing(t, n, oddSecret)
		given = hello.Given(r.GetVolumeId())
		if !strings.Contains(given, "hello-again\x00"+r.GetVolumeId()) {
			t.Fatalf("the program's arguments are not among what it was given: %q", given)
		}
		return given
	}

	alone := harness.NewNode(t, "--standalone")
	alone.Binary = harness.BuildVendor(t, "node-healer")
	alone.Start()
	given := heal(alone, alone.NewVolume("ext4", "alone").Request())
	rest := strings.Replace(given, "userKey="+oddSecret+"\n", "", 1)
	if rest == given {
		t.Errorf("the program was not given the secrets of a caller that vouches: %q", given)
	}
	quotesNothing(t, oddSecret, "what the program was given beside its standard input", rest)

	m := newMember(t)
	m.Binary = alone.Binary
	m.Start()
	quotesNothing(t, oddSecret, "what the program was given in a cluster", heal(m.Node, m.newClaimed("ext4", "member").Request()))
}
