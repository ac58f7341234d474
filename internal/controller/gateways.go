package controller

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
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
	tokens tokens
}

func newGateways(reader client.Reader, api client.SubResourceClientConstructor, cfg Gateways) (*gateways, error) {
	for _, f := range []struct{ name, value string }{
		{"the gateways' namespace", cfg.Namespace},
		{"the gateways' server name", cfg.Server},
		{"the own namespace", cfg.Self.Namespace},
		{"the own account", cfg.Self.Account},
		{"the own pod", cfg.Self.Pod},
		{"the own pod's UID", cfg.Self.PodUID},
	} {
		if f.value == "" {
			return nil, fmt.Errorf("controller: %s is required", f.name)
		}
	}
	if cfg.Trust.CAFile != "" && cfg.Trust.ServerName == "" {
		return nil, errors.New("controller: with an authority, the name in the gateways' certificates is required")
	}
	return &gateways{Gateways: cfg, reader: reader, tokens: tokens{api: api, self: cfg.Self, byNode: map[string]nodeToken{}}}, nil
}

// route is how one node's gateway is called.
type route struct {
	address string
	tls     *tls.Config
	token   bearer
}

// find returns the route to a node's gateway, or why there is none.
func (g *gateways) find(ctx context.Context, node string) (route, *outcome) {
	if o := g.nodeReady(ctx, node); o != nil {
		return route{}, o
	}
	object, o := g.registration(ctx, node)
	if o != nil {
		return route{}, o
	}
	address, err := g.address(ctx, node, object)
	if err != nil {
		return route{}, pointer(hindered(ReasonGatewayNotRegistered, changing, "the gateway that is registered for node %s cannot be called: %v", node, err))
	}
	config, err := g.Trust.config(object.GetAnnotations())
	if err != nil {
		return route{}, pointer(hindered(ReasonCertificateRefused, distrusted, "the gateway of node %s cannot be verified: %v", node, err))
	}
	token, err := g.tokens.forNode(ctx, node)
	if err != nil {
		return route{}, pointer(hindered(ReasonTokenNotMade, passing, "make a token for the gateway of node %s: %v", node, err))
	}
	return route{address: address, tls: config, token: token}, nil
}

// nodeReady returns nil if a node is ready as far as the API knows: a call to one that
// is down would take a worker until it times out.
func (g *gateways) nodeReady(ctx context.Context, name string) *outcome {
	node := &corev1.Node{}
	err := g.reader.Get(ctx, client.ObjectKey{Name: name}, node)
	switch {
	case apierrors.IsNotFound(err):
		return pointer(hindered(ReasonNodeNotReady, passing, "node %s does not exist", name))
	case err != nil:
		return pointer(hindered(ReasonNodeNotReady, passing, "node %s: %v", name, err))
	}
	for _, c := range node.Status.Conditions {
		if c.Type != corev1.NodeReady {
			continue
		}
		if c.Status == corev1.ConditionTrue {
			return nil
		}
		return pointer(hindered(ReasonNodeNotReady, passing, "node %s is not ready: %s: %s", name, c.Reason, c.Message))
	}
	return pointer(hindered(ReasonNodeNotReady, passing, "node %s does not say that it is ready", name))
}

// registration returns the CSIAddonsNode that the node's gateway keeps.
func (g *gateways) registration(ctx context.Context, node string) (*unstructured.Unstructured, *outcome) {
	name := registration.ObjectName(node, g.Server)
	object := &unstructured.Unstructured{}
	object.SetGroupVersionKind(registration.CSIAddonsNodes.GroupVersion().WithKind(registration.Kind))
	if err := g.reader.Get(ctx, client.ObjectKey{Namespace: g.Namespace, Name: name}, object); err != nil {
		return nil, pointer(hindered(ReasonGatewayNotRegistered, changing, "the gateway of node %s is not registered as csiaddonsnode %s in namespace %s: %v", node, name, g.Namespace, err))
	}
	for field, want := range map[string]string{"name": g.Server, "nodeID": node} {
		if got, _, _ := unstructured.NestedString(object.Object, "spec", "driver", field); got != want {
			return nil, pointer(hindered(ReasonGatewayNotRegistered, changing, "csiaddonsnode %s has %s %q, want %q", name, field, got, want))
		}
	}
	return object, nil
}

// address returns where the gateway's pod serves. The pod has to run on the node.
func (g *gateways) address(ctx context.Context, node string, object *unstructured.Unstructured) (string, error) {
	endpoint, _, err := unstructured.NestedString(object.Object, "spec", "driver", "endpoint")
	if err != nil {
		return "", err
	}
	parsed, err := url.Parse(endpoint)
	if err != nil {
		return "", err
	}
	// pod://<pod>.<namespace>:<port>; only the pod's name may have dots.
	name, ours := strings.CutSuffix(parsed.Hostname(), "."+g.Namespace)
	if parsed.Scheme != "pod" || !ours || name == "" || parsed.Port() == "" {
		return "", fmt.Errorf("its endpoint %q is not pod://POD.%s:PORT", endpoint, g.Namespace)
	}
	pod := &corev1.Pod{}
	if err := g.reader.Get(ctx, client.ObjectKey{Namespace: g.Namespace, Name: name}, pod); err != nil {
		return "", err
	}
	switch {
	case pod.Spec.NodeName != node:
		return "", fmt.Errorf("its pod %s runs on node %q", name, pod.Spec.NodeName)
	case pod.Status.PodIP == "":
		return "", fmt.Errorf("its pod %s has no address", name)
	}
	return net.JoinHostPort(pod.Status.PodIP, parsed.Port()), nil
}

func pointer(o outcome) *outcome { return &o }
