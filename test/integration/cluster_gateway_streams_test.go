package integration

import (
	"fmt"
	"testing"

	"google.golang.org/grpc/codes"
	reflectionv1 "google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/grpc/status"
	rbacv1 "k8s.io/api/rbac/v1"

	"github.com/csi-addons/node-healer/test/harness"
)

// TestIdleReflectionStreams opens 1,152 of them with a token that may only check, and has
// the controller's calls answered meanwhile.
func TestIdleReflectionStreams(t *testing.T) {
	const connections, streams = 36, 32
	r := newReachable(t)
	v := r.newClaimed("ext4", "beside")
	ns := r.api.Namespace(t)
	r.api.Account(t, ns, "checker")
	r.api.Grant(t, ns, "checker", rbacv1.PolicyRule{APIGroups: []string{"csi-addons.io"}, Resources: []string{"nodehealers"}, Verbs: []string{"check"}})
	checker, controller := r.token(ns, "checker"), r.controllerToken()
	ended := make(chan error, connections*streams)
	for range connections {
		client := reflectionv1.NewServerReflectionClient(r.dial(checker))
		for range streams {
			stream, err := client.ServerReflectionInfo(within(t))
			harness.Must(t, err)
			go func() { _, err := stream.Recv(); ended <- err }()
		}
	}
	for range 20 {
		harness.Must(t, heal(v)(within(t), r.dial(controller)))
		harness.Must(t, identify(within(t), r.dial(controller)))
	}
	for range connections * streams {
		if err := <-ended; status.Code(err) != codes.Aborted && status.Code(err) != codes.DeadlineExceeded && !r.IsTransient(fmt.Sprint(err)) {
			t.Errorf("an idle stream ended with %v", err)
		}
	}
}
