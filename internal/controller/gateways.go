package controller

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/url"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/csi-addons/node-healer/pkg/api"
	"github.com/csi-addons/node-healer/pkg/api/registration"
)

// Gateways says where the nodes' gateways are found and how they are called.
type Gateways struct {
	// Namespace is where they run and register. Registrations elsewhere are not read.
	Namespace string
	// Server is the name that they register. Those of drivers are not read.
	Server string
	Trust  Trust
	// Self is what the tokens are made for and bound to that the gateways see.
	Self Identity
}

// gateways calls the servers of nodes. Make it with newGateways.
type gateways struct {
	Gateways

	reader client.Reader
	api    client.SubResourceClientConstructor

	mu sync.Mutex
	// tokens has those, by node, that are not to be made again yet.
	tokens map[string]nodeToken
}

func newGateways(reader client.Reader, api client.SubResourceClientConstructor, cfg Gateways) *gateways {
	return &gateways{Gateways: cfg, reader: reader, api: api, tokens: map[string]nodeToken{}}
}

// route is how one node's gateway is called.
type route struct {
	address string
	tls     *tls.Config
	token   bearer
}

// find returns the route to a node's gateway, or why there is none.
func (g *gateways) find(ctx context.Context, node string) (route, *outcome) {
	none := func(reason string, class api.Class, format string, args ...any) (route, *outcome) {
		o := hindered(reason, class, format, args...)
		return route{}, &o
	}
	if err := g.nodeReady(ctx, node); err != nil {
		return none(ReasonNodeNotReady, passing, "%v", err)
	}
	address, annotations, err := g.registered(ctx, node)
	if err != nil {
		return none(ReasonGatewayNotRegistered, changing, "no gateway is registered in namespace %s for node %s that can be called: %v", g.Namespace, node, err)
	}
	config, err := g.Trust.config(annotations)
	if err != nil {
		return none(ReasonCertificateRefused, distrusted, "the gateway of node %s cannot be verified: %v", node, err)
	}
	token, err := g.makeToken(ctx, node)
	if err != nil {
		return none(ReasonTokenNotMade, passing, "make a token for the gateway of node %s: %v", node, err)
	}
	return route{address: address, tls: config, token: token}, nil
}

// nodeReady returns nil if a node is ready as far as the API knows: a call to one that
// is down would take a worker until it times out.
func (g *gateways) nodeReady(ctx context.Context, name string) error {
	node := &corev1.Node{}
	if err := g.reader.Get(ctx, client.ObjectKey{Name: name}, node); err != nil {
		return fmt.Errorf("read node %s: %w", name, err)
	}
	for _, c := range node.Status.Conditions {
		switch {
		case c.Type != corev1.NodeReady:
		case c.Status == corev1.ConditionTrue:
			return nil
		default:
			return fmt.Errorf("node %s is not ready: %s: %s", name, c.Reason, c.Message)
		}
	}
	return fmt.Errorf("node %s does not say that it is ready", name)
}

// registered returns where the gateway serves that keeps the node's CSIAddonsNode, and what its
// certificate is verified by. The gateway's pod has to run on the node.
func (g *gateways) registered(ctx context.Context, node string) (address string, annotations map[string]string, _ error) {
	object := &unstructured.Unstructured{}
	object.SetGroupVersionKind(registration.CSIAddonsNodes.GroupVersion().WithKind(registration.Kind))
	if err := g.reader.Get(ctx, client.ObjectKey{Namespace: g.Namespace, Name: registration.ObjectName(node, g.Server)}, object); err != nil {
		return "", nil, err
	}
	driver, _, err := unstructured.NestedStringMap(object.Object, "spec", "driver")
	if err != nil {
		return "", nil, err
	}
	if driver["name"] != g.Server || driver["nodeID"] != node {
		return "", nil, fmt.Errorf("csiaddonsnode %s is of server %q and node %q", object.GetName(), driver["name"], driver["nodeID"])
	}
	endpoint, err := url.Parse(driver["endpoint"])
	if err != nil {
		return "", nil, err
	}
	// pod://<pod>.<namespace>:<port>; only the pod's name may have dots.
	name, ours := strings.CutSuffix(endpoint.Hostname(), "."+g.Namespace)
	if endpoint.Scheme != "pod" || !ours || name == "" || endpoint.Port() == "" {
		return "", nil, fmt.Errorf("its endpoint %q is not pod://POD.%s:PORT", driver["endpoint"], g.Namespace)
	}
	pod := &corev1.Pod{}
	if err := g.reader.Get(ctx, client.ObjectKey{Namespace: g.Namespace, Name: name}, pod); err != nil {
		return "", nil, fmt.Errorf("read its pod: %w", err)
	}
	switch {
	case pod.Spec.NodeName != node:
		return "", nil, fmt.Errorf("its pod %s runs on node %q", name, pod.Spec.NodeName)
	case pod.Status.PodIP == "":
		return "", nil, fmt.Errorf("its pod %s has no address", name)
	}
	return net.JoinHostPort(pod.Status.PodIP, endpoint.Port()), object.GetAnnotations(), nil
}
