package integration

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/kubernetes-csi/csi-test/v5/pkg/sanity"
	"github.com/onsi/ginkgo/v2"
	"github.com/onsi/ginkgo/v2/types"
	"github.com/onsi/gomega"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/csi-addons/node-healer/test/harness"
)

// sanityRuns are the specs of csi-sanity that are about what the server offers.
// All must run: one that is skipped fails the test as well.
var sanityRuns = []string{
	"Identity Service GetPluginCapabilities should return appropriate capabilities",
	"Identity Service GetPluginInfo should return appropriate information",
	"Identity Service Probe should return appropriate information",
	"Node Service NodeGetCapabilities should return appropriate capabilities",
	"Node Service NodeGetVolumeHealth should fail when no volume id is provided",
	"Node Service NodeGetVolumeHealth should return health for a valid volume",
	"Node Service should be idempotent",
	"Node Service should work",
}

// Of the two services these specs are inspected. What is left out would test the
// stand-in for a driver, and nothing of ours; those of calls for which a
// capability is missing are skipped by the suite itself.
var (
	sanityOf      = []string{"^csi-sanity (Identity|Node) Service "}
	sanityWithout = []string{"^csi-sanity Node Service (NodeGetInfo|NodePublishVolume|NodeUnpublishVolume) "}
)

// TestSanity runs csi-sanity (github.com/kubernetes-csi/csi-test) against the server, and
// against the vendor's driver with the healer in it. A CO has a driver beside node-healer,
// which makes and publishes volumes; here that is a stand-in with real volumes. It serves
// only what the server answers with UNIMPLEMENTED.
func TestSanity(t *testing.T) {
	harness.NewHello(t)
	n := harness.NewNode(t, "--standalone").Start()
	vendor, driver := vendorsDriver(t)
	vendor.Start()
	for _, close := range []func(){inspect(t, n, n.Socket()), inspect(t, vendor, driver.Socket())} {
		defer close()
	}
	suite, reporter := ginkgo.GinkgoConfiguration()
	suite.FocusStrings, suite.SkipStrings = sanityOf, sanityWithout
	reporter.Succinct, reporter.NoColor = true, true
	var specs types.SpecReports
	ginkgo.ReportAfterSuite("specs", func(r ginkgo.Report) { specs = r.SpecReports })
	gomega.RegisterFailHandler(ginkgo.Fail)
	ginkgo.RunSpecs(t, "csi-sanity", suite, reporter) // fails t when a spec fails

	var ran []string
	for _, s := range specs.WithLeafNodeType(types.NodeTypeIt) {
		if s.State == types.SpecStatePassed {
			ran = append(ran, s.FullText())
		} else if why := s.Failure.Message; why != "" {
			t.Logf("%s: %s (%s)", s.State, s.FullText(), why)
		}
	}
	slices.Sort(ran)
	want := slices.Sorted(slices.Values(slices.Concat(sanityRuns, sanityRuns)))
	if !slices.Equal(ran, want) {
		t.Errorf("these passed:\n%s\nwant:\n%s", strings.Join(ran, "\n"), strings.Join(want, "\n"))
	}
}

// inspect has the specs inspect what a node's server serves at a socket; end ends its
// connections.
func inspect(t *testing.T, n *harness.Node, socket string) (end func()) {
	t.Helper()
	d := newStandIn(t, n, "ext4", "xfs", "btrfs", "tmpfs")
	config := sanity.NewTestConfig()
	config.Address = socket
	config.DialOptions = append(config.DialOptions, grpc.WithUnaryInterceptor(d.beside))
	config.ControllerAddress = d.socket
	config.TargetPath = filepath.Join(n.Kubelet, "target")
	config.StagingPath = filepath.Join(n.Kubelet, "staging")
	config.TestVolumeSize = 1 << 20
	config.IdempotentCount = 3
	return sanity.GinkgoTest(&config).Finalize
}

// standIn is the driver beside the server: volumes that are there already, and
// that it publishes at one more mount point.
type standIn struct {
	csi.UnimplementedControllerServer
	csi.UnimplementedIdentityServer
	csi.UnimplementedNodeServer

	socket string
	conn   *grpc.ClientConn

	mu        sync.Mutex
	spare     []*harness.Volume
	byName    map[string]*harness.Volume
	published map[string]string // volume ID by target
}

// newStandIn makes the volumes, because no other goroutine may fail the test.
func newStandIn(t *testing.T, n *harness.Node, kinds ...string) *standIn {
	t.Helper()
	d := &standIn{socket: filepath.Join(n.Dir, "driver.sock"), byName: map[string]*harness.Volume{}, published: map[string]string{}}
	for i, fs := range kinds {
		d.spare = append(d.spare, n.NewVolume(fs, fmt.Sprintf("sanity %d: %s", i, fs)))
	}
	l, err := net.Listen("unix", d.socket)
	harness.Must(t, err)
	server := grpc.NewServer()
	csi.RegisterControllerServer(server, d)
	csi.RegisterIdentityServer(server, d)
	csi.RegisterNodeServer(server, d)
	served := make(chan error, 1)
	go func() { served <- server.Serve(l) }()
	d.conn, err = grpc.NewClient("unix://"+d.socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	harness.Must(t, err)
	t.Cleanup(func() {
		_ = d.conn.Close()
		server.Stop()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	return d
}

// beside hands over what the server does not offer, and adds to its capabilities
// that a controller is there.
func (d *standIn) beside(ctx context.Context, method string, req, reply any, server *grpc.ClientConn, call grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	err := call(ctx, method, req, reply, server, opts...)
	if status.Code(err) == codes.Unimplemented {
		return d.conn.Invoke(ctx, method, req, reply, opts...)
	}
	if c, is := reply.(*csi.GetPluginCapabilitiesResponse); is && err == nil {
		c.Capabilities = append(c.Capabilities, &csi.PluginCapability{Type: &csi.PluginCapability_Service_{
			Service: &csi.PluginCapability_Service{Type: csi.PluginCapability_Service_CONTROLLER_SERVICE},
		}})
	}
	return err
}

// The stand-in's answers.

func (d *standIn) GetPluginCapabilities(context.Context, *csi.GetPluginCapabilitiesRequest) (*csi.GetPluginCapabilitiesResponse, error) {
	return &csi.GetPluginCapabilitiesResponse{}, nil
}

func (d *standIn) GetPluginInfo(context.Context, *csi.GetPluginInfoRequest) (*csi.GetPluginInfoResponse, error) {
	return &csi.GetPluginInfoResponse{Name: harness.Driver, VendorVersion: "1"}, nil
}

func (d *standIn) Probe(context.Context, *csi.ProbeRequest) (*csi.ProbeResponse, error) {
	return &csi.ProbeResponse{}, nil
}

func (d *standIn) ControllerGetCapabilities(context.Context, *csi.ControllerGetCapabilitiesRequest) (*csi.ControllerGetCapabilitiesResponse, error) {
	return &csi.ControllerGetCapabilitiesResponse{}, nil
}

func (d *standIn) NodeGetInfo(context.Context, *csi.NodeGetInfoRequest) (*csi.NodeGetInfoResponse, error) {
	return &csi.NodeGetInfoResponse{NodeId: "node-1"}, nil
}

func (d *standIn) CreateVolume(_ context.Context, req *csi.CreateVolumeRequest) (*csi.CreateVolumeResponse, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	v, known := d.byName[req.GetName()]
	if !known && len(d.spare) == 0 {
		return nil, status.Error(codes.ResourceExhausted, "there are more specs than volumes")
	}
	if !known {
		v, d.spare = d.spare[0], d.spare[1:]
		d.byName[req.GetName()] = v
	}
	return &csi.CreateVolumeResponse{Volume: &csi.Volume{VolumeId: v.ID, CapacityBytes: req.GetCapacityRange().GetRequiredBytes()}}, nil
}

func (d *standIn) DeleteVolume(context.Context, *csi.DeleteVolumeRequest) (*csi.DeleteVolumeResponse, error) {
	return &csi.DeleteVolumeResponse{}, nil // the node takes them down in the end
}

func (d *standIn) NodePublishVolume(_ context.Context, req *csi.NodePublishVolumeRequest) (*csi.NodePublishVolumeResponse, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	target := req.GetTargetPath()
	if d.published[target] == req.GetVolumeId() {
		return &csi.NodePublishVolumeResponse{}, nil
	}
	for _, v := range d.byName {
		if v.ID != req.GetVolumeId() {
			continue
		}
		if err := errors.Join(os.Mkdir(target, 0o755), unix.Mount(v.MountPoint(), target, "", unix.MS_BIND, "")); err != nil {
			return nil, err
		}
		d.published[target] = v.ID
		return &csi.NodePublishVolumeResponse{}, nil
	}
	return nil, status.Error(codes.NotFound, "no such volume")
}

func (d *standIn) NodeUnpublishVolume(_ context.Context, req *csi.NodeUnpublishVolumeRequest) (*csi.NodeUnpublishVolumeResponse, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	target := req.GetTargetPath()
	if d.published[target] == "" {
		return &csi.NodeUnpublishVolumeResponse{}, nil
	}
	if err := errors.Join(unix.Unmount(target, 0), os.Remove(target)); err != nil {
		return nil, err
	}
	delete(d.published, target)
	return &csi.NodeUnpublishVolumeResponse{}, nil
}
