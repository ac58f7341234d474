package integration

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"net"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/csi-addons/spec/lib/go/identity"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/protobuf/reflect/protoreflect"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/csi-addons/node-healer/pkg/api/healerpb"
	"github.com/csi-addons/node-healer/test/harness"
	"github.com/csi-addons/node-healer/test/harness/cluster"
)

// TestControllerConnects follows the controller's way from the registration to
// Connected, with only what the controller has, and heals. Its token is for the API
// server, which gateways take only if they are told so.
func TestControllerConnects(t *testing.T) {
	r := newRegistered(t)
	audience := r.api.APIAudience(t)
	r.Start()
	c := addonsController{registered: r, token: r.api.Token(t, cluster.AddonsNamespace, cluster.AddonsAccount)}
	for _, name := range []string{"node-healer-gateway-abcde", "node-healer.dotted-fghij"} {
		t.Run(name, func(t *testing.T) {
			outer := r.T
			defer func() { r.T = outer }()
			r.T = t
			r.newPod(func(p *corev1.Pod) {
				p.Name = name
				p.Status.PodIP = "127.0.0.1"
			})
			r.startGateway("--token-audience=" + audience)
			defer r.gateway.Stop()
			harness.Eventually(t, "the registration", func() bool {
				node := r.now()
				return node != nil && node.GetAnnotations()["sidecar.csiaddons.openshift.io/createdByPodUID"] == string(r.pod.UID)
			})
			conn := c.connect(t)

			who, err := identity.NewIdentityClient(conn).GetIdentity(within(t), &identity.GetIdentityRequest{})
			harness.Must(t, err)
			if who.GetName() != r.driver() || who.GetName() != ownName {
				t.Errorf("it calls itself %q, and registered as %q", who.GetName(), r.driver())
			}
			state := r.api.Kubectl(t, "get", "csiaddonsnodes", "-n", ownNamespace, registeredName, "-o=jsonpath={.status.state} {.status.capabilities}")
			if state != `Connected ["service.NODE_SERVICE"]` {
				t.Errorf("kubectl shows %s", state)
			}
			v := r.lost("connected-" + name[len(name)-5:])
			answer, err := healerpb.NewHealerNodeClient(conn).NodeHealer(within(t), v.Request())
			if err != nil || answer.GetAbnormal() || !strings.HasPrefix(answer.GetMessage(), "healed: ") {
				t.Errorf("got %v, %v", answer, err)
			}
		})
	}
}

// addonsController does with a registration what the CSI-Addons controller does, call for
// call (csi-addons/kubernetes-csi-addons: csiaddonsnode_controller.go and
// connection.go in internal). Its own module cannot be had from the module proxy.
type addonsController struct {
	*registered
	token string
}

// connect reconciles the registration and returns the connection.
func (c addonsController) connect(t *testing.T) *grpc.ClientConn {
	t.Helper()
	node := c.now()
	c.change(`{"metadata": {"finalizers": ["csiaddons.openshift.io/csiaddonsnode"]}}`)
	endpoint, found, err := unstructured.NestedString(node.Object, "spec", "driver", "endpoint")
	harness.Must(t, err)
	if !found {
		t.Fatal("no endpoint")
	}
	conn, err := grpc.NewClient(c.resolve(endpoint),
		grpc.WithTransportCredentials(credentials.NewTLS(&tls.Config{InsecureSkipVerify: true})),
		grpc.WithUnaryInterceptor(func(ctx context.Context, method string, req, resp any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, o ...grpc.CallOption) error {
			return c.unary(bearing(ctx, c.token), method, req, resp, cc, invoke, o...)
		}))
	harness.Must(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	can, err := identity.NewIdentityClient(conn).GetCapabilities(within(t), &identity.GetCapabilitiesRequest{})
	if err != nil {
		t.Fatalf("connect to %s: %v\n%s", endpoint, err, c.Log)
	}
	status, err := json.Marshal(map[string]any{"status": map[string]any{
		"state": "Connected", "message": "Successfully established connection with sidecar", "capabilities": words(can.GetCapabilities()),
	}})
	harness.Must(t, err)
	c.change(string(status), "status")
	return conn
}

// resolve returns the address behind pod://<pod>.<namespace>:<port>. Only the
// namespace has no dot.
func (c addonsController) resolve(endpoint string) string {
	c.T.Helper()
	parsed, err := url.Parse(endpoint)
	harness.Must(c.T, err)
	host := parsed.Hostname()
	dot := strings.LastIndex(host, ".")
	if parsed.Scheme != "pod" || dot <= 0 || dot == len(host)-1 {
		c.T.Fatalf("the endpoint is %s", endpoint)
	}
	pod, err := c.api.Admin().CoreV1().Pods(host[dot+1:]).Get(c.T.Context(), host[:dot], metav1.GetOptions{})
	harness.Must(c.T, err)
	if pod.Status.PodIP == "" {
		c.T.Fatalf("pod %s has no address", pod.Name)
	}
	return net.JoinHostPort(pod.Status.PodIP, parsed.Port())
}

// words returns capabilities as the controller shows them: service.NODE_SERVICE.
func words(all []*identity.Capability) (said []string) {
	for _, one := range all {
		one.ProtoReflect().Range(func(kind protoreflect.FieldDescriptor, v protoreflect.Value) bool {
			of := v.Message()
			value := kind.Message().Fields().ByName("type")
			said = append(said, fmt.Sprintf("%s.%s", kind.Name(), value.Enum().Values().ByNumber(of.Get(value).Enum()).Name()))
			return true
		})
	}
	slices.Sort(said)
	return said
}
