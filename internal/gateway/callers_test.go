package gateway

import (
	"strings"
	"testing"

	"google.golang.org/grpc/metadata"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/client-go/rest"

	"github.com/csi-addons/node-healer/pkg/api/healerpb"
)

// TestAudiences: a token for the API server, which is good at every node, is taken only by
// a gateway that was told so, and one for another node by none.
func TestAudiences(t *testing.T) {
	for name, tc := range map[string]struct {
		audience, token string
		taken           bool
	}{
		"as shipped":                   {"", forAPI, false},
		"told so":                      {apiAudience, forAPI, true},
		"told of another":              {"other", forAPI, false},
		"another node's":               {"", otherNode, false},
		"another node's, and told so":  {apiAudience, otherNode, false},
		"its own, and told of another": {apiAudience, healing, true},
	} {
		c, err := NewCallers(&rest.Config{}, "node-1", tc.audience)
		must(t, err)
		c.tokens, c.rights = authenticator.TokenFunc(fakeTokens), rights(fakeRights)
		ctx := metadata.NewIncomingContext(t.Context(), metadata.Pairs("authorization", "Bearer "+tc.token))
		_, err = c.authorizeCall(ctx, healerpb.HealerNode_NodeHealer_FullMethodName)
		if (err == nil) != tc.taken || err != nil && !strings.Contains(err.Error(), "another audience") {
			t.Errorf("%s: got %v", name, err)
		}
	}
	if _, err := NewCallers(&rest.Config{}, "", ""); err == nil {
		t.Error("a gateway without a node's name")
	}
}
