package gateway

import (
	"context"
	"crypto/x509"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/csi-addons/spec/lib/go/identity"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/server/dynamiccertificates"
	"k8s.io/client-go/dynamic/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/csi-addons/node-healer/pkg/api/forwarded"
	"github.com/csi-addons/node-healer/pkg/api/registration"
)

var ours = RegistrationConfig{Node: "node-1", Pod: "node-healer-gateway-x", Namespace: "ns", PodUID: "pod-uid", Port: 9070}

// named is a server that only says what it is called.
type named struct {
	grpc.ClientConnInterface
	name string
	gone atomic.Bool
	told metadata.MD
}

func (n *named) Invoke(ctx context.Context, _ string, _, reply any, _ ...grpc.CallOption) error {
	n.told, _ = metadata.FromOutgoingContext(ctx)
	reply.(*identity.GetIdentityResponse).Name = n.name
	if n.gone.Load() {
		return errors.New("no such socket")
	}
	return nil
}

// registering runs a registration in a bubble, until the function is called.
func registering(t *testing.T, api *fake.FakeDynamicClient, cfg RegistrationConfig, server *named) (end func()) {
	t.Helper()
	served := &testContent{t: t}
	served.renew()
	return registeringWith(t, api, cfg, server, &certificates{content: served})
}

func registeringWith(t *testing.T, api *fake.FakeDynamicClient, cfg RegistrationConfig, server *named, certs *certificates) (end func()) {
	t.Helper()
	r := &Registration{cfg: cfg, certificates: certs, objects: api.Resource(registration.CSIAddonsNodes).Namespace(cfg.Namespace)}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); r.Run(ctx, server) }()
	synctest.Wait()
	return func() { cancel(); <-done }
}

func newAPI(objects ...runtime.Object) *fake.FakeDynamicClient {
	return fake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(),
		map[schema.GroupVersionResource]string{registration.CSIAddonsNodes: "CSIAddonsNodeList"}, objects...)
}

// registered returns the one registration that is there; nil: there is none.
func registered(t *testing.T, api *fake.FakeDynamicClient) *unstructured.Unstructured {
	t.Helper()
	list, err := api.Resource(registration.CSIAddonsNodes).Namespace("ns").List(t.Context(), metav1.ListOptions{})
	must(t, err)
	if len(list.Items) > 1 {
		t.Fatalf("%d registrations", len(list.Items))
	}
	if len(list.Items) == 0 {
		return nil
	}
	return &list.Items[0]
}

func driverOf(t *testing.T, node *unstructured.Unstructured) string {
	t.Helper()
	if node == nil {
		return ""
	}
	name, _, err := unstructured.NestedString(node.Object, "spec", "driver", "name")
	must(t, err)
	return name
}

func TestRegistersWhatTheServerIsCalled(t *testing.T) {
	for name, tc := range map[string]struct {
		as, want, object string
	}{
		"its own name":    {"", "node-healer.csi-addons.io", "node-1-node-healer.csi-addons.io"},
		"a driver's name": {"Rbd.CSI.ceph.com", "Rbd.CSI.ceph.com", "node-1-rbd.csi.ceph.com"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				api, cfg, server := newAPI(), ours, &named{name: "node-healer.csi-addons.io"}
				cfg.As = tc.as
				defer registering(t, api, cfg, server)()
				node := registered(t, api)
				if driverOf(t, node) != tc.want || node.GetName() != tc.object {
					t.Fatalf("got %+v", node)
				}
				if owners := node.GetOwnerReferences(); len(owners) != 1 || owners[0].Kind != "Pod" || owners[0].UID != "pod-uid" {
					t.Errorf("it belongs to %+v", owners)
				}
				if got := server.told.Get(forwarded.Verb); len(got) != 1 || got[0] != forwarded.VerbCheck {
					t.Errorf("the server is asked with %v", server.told)
				}
			})
		})
	}
}

func TestRegistrationIsRenewedAtEveryStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		earlier := ours.object("node-healer.csi-addons.io", new(x509.Certificate), time.Now().Add(-time.Hour))
		earlier.SetFinalizers([]string{"csiaddons.openshift.io/csiaddonsnode"})
		earlier.SetOwnerReferences([]metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: "gone", UID: "gone"}})
		api := newAPI(earlier)
		defer registering(t, api, ours, &named{name: "node-healer.csi-addons.io"})()
		now := registered(t, api)
		if now.GetAnnotations()[updatedAtAnnotation] == earlier.GetAnnotations()[updatedAtAnnotation] {
			t.Error("it was not renewed")
		}
		if len(now.GetFinalizers()) != 1 || now.GetOwnerReferences()[0].UID != "pod-uid" {
			t.Errorf("got %+v", now)
		}
	})
}

func TestRegistrationComesBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := newAPI()
		defer registering(t, api, ours, &named{name: "node-healer.csi-addons.io"})()
		name := registered(t, api).GetName()
		must(t, api.Resource(registration.CSIAddonsNodes).Namespace("ns").Delete(t.Context(), name, metav1.DeleteOptions{}))
		time.Sleep(2 * registerInterval)
		synctest.Wait()
		if registered(t, api) == nil {
			t.Error("it stays deleted")
		}
	})
}

func TestRegistrationWaits(t *testing.T) {
	for name, setUp := range map[string]func(api *fake.FakeDynamicClient, server *named) (mend func()){
		"for the server": func(_ *fake.FakeDynamicClient, server *named) func() {
			server.gone.Store(true)
			return func() { server.gone.Store(false) }
		},
		"for the controller": func(api *fake.FakeDynamicClient, _ *named) func() {
			var missing atomic.Bool
			missing.Store(true)
			api.PrependReactor("create", "csiaddonsnodes", func(clienttesting.Action) (bool, runtime.Object, error) {
				return missing.Load(), nil, apierrors.NewNotFound(registration.CSIAddonsNodes.GroupResource(), "")
			})
			return func() { missing.Store(false) }
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				api, server := newAPI(), &named{name: "node-healer.csi-addons.io"}
				mend := setUp(api, server)
				defer registering(t, api, ours, server)()
				time.Sleep(time.Minute)
				synctest.Wait()
				mend()
				if registered(t, api) != nil {
					t.Error("it was registered before")
				}
				time.Sleep(6 * time.Minute)
				synctest.Wait()
				if registered(t, api) == nil {
					t.Error("it was never registered")
				}
			})
		})
	}
}

// TestRegistrationHasTheCertificate that is served now, also after it was replaced.
func TestRegistrationHasTheCertificate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		served := &testContent{t: t}
		served.renew()
		certs := &certificates{content: served}
		api, server := newAPI(), &named{name: "node-healer.csi-addons.io"}
		defer registeringWith(t, api, ours, server, certs)()
		for range 2 {
			time.Sleep(2 * registerInterval)
			synctest.Wait()
			pair, err := certs.pair()
			must(t, err)
			got, err := registration.Certificate(registered(t, api).GetAnnotations())
			if err != nil || !got.Equal(pair.Leaf) {
				t.Errorf("got %v, %v", got, err)
			}
			served.renew()
		}
	})
}

// testContent is a certificate that can be replaced.
type testContent struct {
	dynamiccertificates.CertKeyContentProvider
	t    *testing.T
	pair atomic.Pointer[[2][]byte]
}

func (c *testContent) renew() {
	cert, key, err := makeCertificate(time.Now())
	must(c.t, err)
	c.pair.Store(&[2][]byte{cert, key})
}

func (c *testContent) CurrentCertKeyContent() (cert, key []byte) {
	pair := c.pair.Load()
	return pair[0], pair[1]
}
