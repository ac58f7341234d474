package controller

import (
	"testing"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/csi-addons/node-healer/pkg/api"
)

// An error is one whatever its details say: a node of another version may have no tier, or one
// that is not known here.
func TestErrorWithoutATier(t *testing.T) {
	for tier, want := range map[string]api.Tier{"": api.Terminal, "new": api.Terminal, string(api.Retriable): api.Retriable} {
		answer, err := status.New(codes.Internal, "broken").WithDetails(&errdetails.ErrorInfo{Domain: api.ErrorDomain, Metadata: map[string]string{"tier": tier}})
		must(t, err)
		if o := failed(answer.Err()); o.class.Tier != want {
			t.Errorf("tier %q: got %+v", tier, o)
		}
	}
}
