package controller

import (
	"context"
	"fmt"
	"net"
	"net/url"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

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
	// tokens has those, by node, that are not to be made again yet.
	tokens *cache.Expiring
}

func newGateways(reader client.Reader, api client.SubResourceClientConstructor, cfg Gateways) *gateways {
	return &gateways{Gateways: cfg, reader: reader, api: api, tokens: cache.NewExpiring()}
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
