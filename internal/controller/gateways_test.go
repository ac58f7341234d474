package controller

import (
	"context"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/csi-addons/node-healer/pkg/api/healerpb"
	"github.com/csi-addons/node-healer/pkg/api/registration"
	"github.com/csi-addons/node-healer/pkg/api/v1alpha1"
)

// site is all that a node's gateway is found by.
type site struct {
	node         *corev1.Node
	pod          *corev1.Pod
	registration *unstructured.Unstructured
	account      *corev1.ServiceAccount
}

func newSite(t *testing.T) *site {
	t.Helper()
	certificate, _ := newPair(t, nil)
	s := &site{
		node: &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: "node-1"},
			Status:     corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}},
		},
		pod: &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: "gateways", Name: "pod.dotted"},
			Spec:       corev1.PodSpec{NodeName: "node-1"}, Status: corev1.PodStatus{PodIP: "fd00::1"},
		},
		registration: &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{"driver": map[string]any{
			"name": "server", "nodeID": "node-1", "endpoint": "pod://pod.dotted.gateways:9070",
		}}}},
		account: &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "gateways", Name: "controller"}},
	}
	s.registration.SetGroupVersionKind(registration.CSIAddonsNodes.GroupVersion().WithKind(registration.Kind))
	s.registration.SetNamespace("gateways")
	s.registration.SetName("node-1-server")
	s.registration.SetAnnotations(registration.Annotations(certificate.Leaf))
	return s
}

func (s *site) gateways(t *testing.T) *gateways {
	t.Helper()
	scheme := runtime.NewScheme()
	must(t, clientgoscheme.AddToScheme(scheme))
	scheme.AddKnownTypeWithName(s.registration.GroupVersionKind(), &unstructured.Unstructured{})
	var objects []client.Object
	for _, o := range []client.Object{s.node, s.pod, s.registration, s.account} {
		if o.GetName() != "" {
			objects = append(objects, o)
		}
	}
	api := fake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...).Build()
	return newGateways(api, api, Gateways{Namespace: "gateways", Server: "server", Self: ownIdentity})
}

func TestGatewayIsFoundByItsRegistration(t *testing.T) {
	g := newSite(t).gateways(t)
	must(t, g.nodeReady(t.Context(), "node-1"))
	address, annotations, err := g.registered(t.Context(), "node-1")
	if err != nil || address != "[fd00::1]:9070" {
		t.Errorf("got %s, %v", address, err)
	}
	if config, err := g.Trust.config(annotations); err != nil || config.InsecureSkipVerify {
		t.Errorf("got %+v, %v", config, err)
	}
	if token, err := g.makeToken(t.Context(), "node-1"); err != nil || token != "fake-token" {
		t.Errorf("got %s, %v", token, err)
	}
}

func TestGatewayIsNotFound(t *testing.T) {
	driver := func(s *site) map[string]any {
		return s.registration.Object["spec"].(map[string]any)["driver"].(map[string]any)
	}
	for name, tc := range map[string]struct {
		change       func(*site)
		reason, says string
	}{
		"no node":             {func(s *site) { s.node = &corev1.Node{} }, ReasonNodeNotReady, "not found"},
		"node down":           {func(s *site) { s.node.Status.Conditions[0].Status = corev1.ConditionUnknown }, ReasonNodeNotReady, "is not ready"},
		"node without word":   {func(s *site) { s.node.Status.Conditions = nil }, ReasonNodeNotReady, "does not say"},
		"no registration":     {func(s *site) { s.registration.SetName("") }, ReasonGatewayNotRegistered, "node-1-server"},
		"another namespace's": {func(s *site) { s.registration.SetNamespace("other") }, ReasonGatewayNotRegistered, "in namespace gateways"},
		"of another node":     {func(s *site) { driver(s)["nodeID"] = "node-2" }, ReasonGatewayNotRegistered, "node-2"},
		"of another server":   {func(s *site) { driver(s)["name"] = "rbd" }, ReasonGatewayNotRegistered, "rbd"},
		"no pod's endpoint":   {func(s *site) { driver(s)["endpoint"] = "https://pod.dotted.gateways:9070" }, ReasonGatewayNotRegistered, "is not pod://"},
		"elsewhere's pod":     {func(s *site) { driver(s)["endpoint"] = "pod://pod.other:9070" }, ReasonGatewayNotRegistered, "is not pod://"},
		"pod elsewhere":       {func(s *site) { s.pod.Spec.NodeName = "node-2" }, ReasonGatewayNotRegistered, "runs on node"},
		"pod gone":            {func(s *site) { s.pod = &corev1.Pod{} }, ReasonGatewayNotRegistered, "not found"},
		"pod starts":          {func(s *site) { s.pod.Status.PodIP = "" }, ReasonGatewayNotRegistered, "has no address"},
		"no certificate":      {func(s *site) { s.registration.SetAnnotations(nil) }, ReasonGatewayUnreachable, "no certificate"},
		"no token":            {func(s *site) { s.account = &corev1.ServiceAccount{} }, ReasonTokenNotMade, "not found"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSite(t)
			tc.change(s)
			o := s.gateways(t).call(t.Context(), "node-1", v1alpha1.ModeCheck, &healerpb.NodeHealerRequest{}, time.Second)
			if o.reason != tc.reason || o.code != "" || !strings.Contains(o.message, tc.says) {
				t.Errorf("got %+v", o)
			}
		})
	}
}

// tellingNode says the more the longer its trailer and its answer may be.
type tellingNode struct {
	csi.UnimplementedNodeServer

	conditions, entries int
}

func (n tellingNode) NodeGetVolumeHealth(ctx context.Context, _ *csi.NodeGetVolumeHealthRequest) (*csi.NodeGetVolumeHealthResponse, error) {
	text := "[" + strings.Repeat("{},", n.conditions) + "{}]"
	entries := make([]*csi.VolumeHealth_VolumeHealthEntry, n.entries)
	for i := range entries {
		entries[i] = &csi.VolumeHealth_VolumeHealthEntry{}
	}
	return &csi.NodeGetVolumeHealthResponse{VolumeHealth: &csi.VolumeHealth{HealthStatuses: entries}}, grpc.SetTrailer(ctx, metadata.Pairs(healerpb.TrailerConditions, text))
}

// A node that was taken over cannot fill the controller's memory with what comes beside an answer.
func TestTrailersAreBounded(t *testing.T) {
	for node, code := range map[tellingNode]codes.Code{{conditions: 100}: codes.OK, {conditions: maxAnswerBytes}: codes.Internal, {conditions: 2000, entries: 2000}: codes.OK} {
		certificate, _ := newPair(t, nil)
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		must(t, err)
		server := grpc.NewServer(grpc.Creds(credentials.NewServerTLSFromCert(&certificate)))
		csi.RegisterNodeServer(server, node)
		go func() { _ = server.Serve(listener) }()
		t.Cleanup(server.Stop)
		s := newSite(t)
		s.pod.Status.PodIP = "127.0.0.1"
		_, port, _ := net.SplitHostPort(listener.Addr().String())
		s.registration.Object["spec"].(map[string]any)["driver"].(map[string]any)["endpoint"] = "pod://pod.dotted.gateways:" + port
		s.registration.SetAnnotations(registration.Annotations(certificate.Leaf))
		o := s.gateways(t).call(t.Context(), "node-1", v1alpha1.ModeCheck, &healerpb.NodeHealerRequest{}, time.Minute)
		if o.code != code.String() || len(o.found) > node.conditions+node.entries {
			t.Errorf("%d conditions, %d entries: got %d findings, %s", node.conditions, node.entries, len(o.found), o.code)
		}
	}
}
