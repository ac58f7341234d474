package integration

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"maps"
	"math/big"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/csi-addons/node-healer/pkg/api/healerpb"
	"github.com/csi-addons/node-healer/pkg/api/registration"
	"github.com/csi-addons/node-healer/pkg/api/v1alpha1"
	"github.com/csi-addons/node-healer/test/harness"
	"github.com/csi-addons/node-healer/test/harness/cluster"
)

type answer func(req *healerpb.NodeHealerRequest, left <-chan struct{}) error

// fakeGateway is a node that exists in the API, with a gateway that answers by itself.
type fakeGateway struct {
	healerpb.UnimplementedHealerNodeServer

	t        *testing.T
	api      *cluster.Cluster
	node     string
	endpoint string
	// answer returns a call's error; the channel is closed when the caller has left.
	answer answer
	// token is what the last call came with.
	token atomic.Value
}

// newFakeGateway serves and registers one.
func newFakeGateway(t *testing.T, api *cluster.Cluster, node string, answer answer) *fakeGateway {
	t.Helper()
	cluster.Create(t, api, cluster.Node(node))
	pod := cluster.Pod(ownNamespace, "gateway-"+node, node)
	pod.Status.PodIP = "127.0.0.1"
	cluster.Create(t, api, pod)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	harness.Must(t, err)
	certificate := newServerCertificate(t)
	_, port, err := net.SplitHostPort(listener.Addr().String())
	harness.Must(t, err)
	g := &fakeGateway{t: t, api: api, node: node, answer: answer, endpoint: fmt.Sprintf("pod://%s.%s:%s", pod.Name, ownNamespace, port)}
	server := grpc.NewServer(grpc.Creds(credentials.NewServerTLSFromCert(&certificate)))
	healerpb.RegisterHealerNodeServer(server, g)
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(server.Stop)
	g.register(certificate)
	return g
}

// NodeHealer implements healerpb.HealerNodeServer.
func (g *fakeGateway) NodeHealer(ctx context.Context, req *healerpb.NodeHealerRequest) (*healerpb.NodeHealerResponse, error) {
	g.token.Store(strings.TrimPrefix(strings.Join(metadata.ValueFromIncomingContext(ctx, "authorization"), ""), "Bearer "))
	if err := g.answer(req, ctx.Done()); err != nil {
		return nil, err
	}
	return &healerpb.NodeHealerResponse{Message: "healthy: " + req.GetVolumeId()}, nil
}

// register writes the registration, with a certificate that may be another one.
func (g *fakeGateway) register(c tls.Certificate) {
	g.t.Helper()
	registerGateway(g.t, g.api, g.node, ownName, g.endpoint, registration.Annotations(c.Leaf))
}

// registerGateway writes a CSIAddonsNode anew.
func registerGateway(t *testing.T, api *cluster.Cluster, node, name, endpoint string, annotations map[string]string) {
	t.Helper()
	object := &unstructured.Unstructured{Object: map[string]any{
		"spec": map[string]any{"driver": map[string]any{"name": name, "nodeID": node, "endpoint": endpoint}},
	}}
	object.SetGroupVersionKind(cluster.CSIAddonsNodes.GroupVersion().WithKind(registration.Kind))
	object.SetName(registration.ObjectName(node, name))
	object.SetAnnotations(annotations)
	nodes := api.Dynamic().Resource(cluster.CSIAddonsNodes).Namespace(ownNamespace)
	_, err := nodes.Apply(t.Context(), object.GetName(), object, metav1.ApplyOptions{FieldManager: "test", Force: true})
	harness.Must(t, err)
	t.Cleanup(func() { _ = nodes.Delete(context.Background(), object.GetName(), metav1.DeleteOptions{}) })
}

// newServerCertificate is self-signed, as a gateway's own is.
func newServerCertificate(t *testing.T) tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	harness.Must(t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), DNSNames: []string{registration.HostName},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	raw, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	harness.Must(t, err)
	leaf, err := x509.ParseCertificate(raw)
	harness.Must(t, err)
	return tls.Certificate{Certificate: [][]byte{raw}, PrivateKey: key, Leaf: leaf}
}

const (
	manyNodes  = 50
	manyClaims = 100
	manyJobs   = 500
	// The bounds that the controllers are told.
	maxCalls, maxCallsPerNode = 16, 2
)

// ledger counts the calls that run, and remembers where there were too many.
type ledger struct {
	mu                 sync.Mutex
	volumes, nodes     map[string]int
	running, most, all int
	wrong              []string
	// half is closed when a part of the calls has ended.
	half chan struct{}
}

// answer is a gateway's: it refuses some calls at first, as a busy server does.
func (l *ledger) answer(node string) answer {
	return func(req *healerpb.NodeHealerRequest, left <-chan struct{}) error {
		n := l.begin(node, req.GetVolumeId())
		defer l.end(node, req.GetVolumeId())
		select {
		case <-left:
		case <-time.After(20 * time.Millisecond):
		}
		if n%50 == 0 {
			return status.Error(codes.Aborted, "busy")
		}
		return nil
	}
}

func (l *ledger) begin(node, volume string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all++
	l.running++
	l.volumes[volume]++
	l.nodes[node]++
	l.most = max(l.most, l.running)
	if l.volumes[volume] > 1 || l.nodes[node] > maxCallsPerNode || l.running > maxCalls {
		l.wrong = append(l.wrong, fmt.Sprintf("%d of %s, %d on %s, %d in all", l.volumes[volume], volume, l.nodes[node], node, l.running))
	}
	if l.all == manyJobs/2 {
		close(l.half)
	}
	return l.all
}

func (l *ledger) end(node, volume string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.running--
	l.volumes[volume]--
	l.nodes[node]--
}

// keeping leaves what a test creates, as its namespace does, too: to remove a thousand
// objects takes longer than the test.
type keeping struct{ testing.TB }

// Cleanup does nothing.
func (keeping) Cleanup(func()) {}

// TestManyVolumeHealJobs runs 500 jobs on 50 nodes, five for each claim, and kills the
// controller in the middle.
func TestManyVolumeHealJobs(t *testing.T) {
	harness.NeedsFull(t)
	api := cluster.Start(t)
	api.Apply(t, manifests)
	api.InstallAddons(t)
	args := installJobs(t, api)
	args = append(args, fmt.Sprint("--max-calls=", maxCalls), fmt.Sprint("--max-calls-per-node=", maxCallsPerNode))
	namespace := api.Namespace(t)
	calls := &ledger{volumes: map[string]int{}, nodes: map[string]int{}, half: make(chan struct{})}
	each(t, manyNodes, func(i int) {
		node := fmt.Sprint("many-", i)
		newFakeGateway(t, api, node, calls.answer(node))
	})
	each(t, manyClaims, func(i int) {
		v := cluster.Volume{PV: fmt.Sprint(namespace, "-", i), ID: fmt.Sprint("many-", i), Driver: harness.Driver, Namespace: namespace, Claim: fmt.Sprint("claim-", i)}
		api.Bind(keeping{t}, v)
		cluster.Create(keeping{t}, api, cluster.Pod(namespace, fmt.Sprint("app-", i), fmt.Sprint("many-", i%manyNodes), v.Claim))
	})
	each(t, manyJobs, func(i int) {
		job := newJob(namespace, fmt.Sprint("job-", i), fmt.Sprint("claim-", i%manyClaims))
		job.Spec.BackoffLimit = nil
		cluster.Create(keeping{t}, api, job)
	})
	leader := harness.StartController(t, args...)
	harness.StartController(t, args...)
	select {
	case <-calls.half:
	case <-time.After(harness.Patience):
		t.Fatalf("half of the jobs did not run\n%s", leader.Log)
	}
	leader.Kill()
	results := map[string]int{}
	harness.Eventually(t, "all jobs have ended", func() bool {
		time.Sleep(200 * time.Millisecond)
		clear(results)
		list, err := api.Dynamic().Resource(v1alpha1.GroupVersion.WithResource("volumehealjobs")).Namespace(namespace).List(t.Context(), metav1.ListOptions{})
		harness.Must(t, err)
		for _, raw := range list.Items {
			var job v1alpha1.VolumeHealJob
			harness.Must(t, runtime.DefaultUnstructuredConverter.FromUnstructured(raw.Object, &job))
			results[string(job.Status.Result)]++
		}
		return results[""] == 0
	})
	calls.mu.Lock()
	defer calls.mu.Unlock()
	if !maps.Equal(results, map[string]int{string(v1alpha1.ResultSucceeded): manyJobs}) || len(calls.wrong) > 0 || calls.most < 2 {
		t.Errorf("got %v; too many calls: %q; at most %d of %d calls at a time", results, calls.wrong, calls.most, calls.all)
	}
	t.Logf("%d calls, at most %d at a time", calls.all, calls.most)
}

// each does something many times, some of them at the same time.
func each(t *testing.T, n int, do func(i int)) {
	t.Helper()
	var all errgroup.Group
	all.SetLimit(8)
	for i := range n {
		all.Go(func() error { do(i); return nil })
	}
	harness.Must(t, all.Wait())
}
