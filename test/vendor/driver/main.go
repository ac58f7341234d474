// hello-csi is a CSI driver that heals its volumes itself. Of CSI it has what that takes: it
// publishes nothing.
package main

import (
	"context"
	"flag"
	"fmt"
	"net"
	"os"
	"os/signal"
	"syscall"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/wrapperspb"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"

	"github.com/csi-addons/node-healer/pkg/bucket"
	"github.com/csi-addons/node-healer/pkg/healer"
	"github.com/csi-addons/node-healer/pkg/nodehealer"

	"example.com/hello-csi/hello"
)

// driver is the node plugin.
type driver struct {
	csi.UnimplementedIdentityServer
	csi.UnimplementedNodeServer
	healer *nodehealer.Healer
}

func main() {
	nodehealer.MaybeWorker()
	endpoint := flag.String("endpoint", "unix:///csi/csi-addons.sock", "where CSI-Addons is served")
	csiSocket := flag.String("csi-socket", "/csi/csi.sock", "where CSI is served, and CSI-Addons as well")
	config := nodehealer.Config{Driver: hello.Driver, Version: "hello-1", Providers: []nodehealer.NewProvider{hello.New}}
	s3 := flag.String("s3", "", "`URL` of an S3 server: all volumes are in the bucket named bucket there, whose key and secret are in S3_KEY and S3_SECRET")
	flag.StringVar(&config.StateDir, "state-dir", "/var/lib/hello-csi/healer", "records and audit log of the healer")
	flag.StringVar(&config.KubeletRoot, "kubelet-root", "/var/lib/kubelet", "kubelet's directory")
	bare := flag.Bool("bare", false, "leave the healer's server options out, as a driver's author might")
	flag.DurationVar(&config.ProbeTimeout, "probe-timeout", 0, "how long one probe may take")
	flag.DurationVar(&config.HealTimeout, "heal-timeout", 0, "how long the work on one volume may take")
	flag.StringVar(&config.HostMountNamespace, "host-mount-namespace", "", "file of the host's mount namespace, where process 1 does not have it")
	kubeconfig := flag.String("kubeconfig", "", "how to reach the Kubernetes API, which then says what is wanted")
	nodeName := flag.String("node-id", "", "the node's name")
	flag.String("driver-name", hello.Driver, "the driver's name")
	klog.InitFlags(nil)
	flag.Parse()
	if *kubeconfig != "" {
		access, err := clientcmd.BuildConfigFromFlags("", *kubeconfig)
		if err != nil {
			fmt.Fprintln(os.Stderr, "hello-csi:", err)
			os.Exit(1)
		}
		config.Gate = nodehealer.Kubernetes(access, *nodeName)
	}
	if *s3 != "" {
		config.Providers = append(config.Providers, bucket.Provider(func(healer.Case) (bucket.Bucket, bool) {
			return bucket.Bucket{
				Endpoint: *s3, Name: "bucket", AccessKeyID: bucket.Secret(os.Getenv("S3_KEY")), SecretAccessKey: bucket.Secret(os.Getenv("S3_SECRET")),
			}, true
		}))
	}
	if err := run(config, *endpoint, *csiSocket, *bare); err != nil {
		fmt.Fprintln(os.Stderr, "hello-csi:", err)
		os.Exit(1)
	}
}

func run(config nodehealer.Config, endpoint, csiSocket string, bare bool) error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	h, err := nodehealer.New(config)
	if err != nil {
		return err
	}
	defer h.Close()
	failed := make(chan error, 2)
	go func() { failed <- h.ListenAndServe(endpoint) }()

	options := h.ServerOptions()
	if bare {
		options = nil
	}
	server := grpc.NewServer(options...)
	d := driver{healer: h}
	csi.RegisterIdentityServer(server, d)
	csi.RegisterNodeServer(server, d)
	h.Register(server)
	_ = os.Remove(csiSocket)
	l, err := net.Listen("unix", csiSocket)
	if err != nil {
		return err
	}
	go func() { failed <- server.Serve(l) }()
	defer server.Stop()
	select {
	case err := <-failed:
		return err
	case <-ctx.Done():
		return nil
	}
}

// NodeGetVolumeHealth has the healer answer.
func (d driver) NodeGetVolumeHealth(ctx context.Context, req *csi.NodeGetVolumeHealthRequest) (*csi.NodeGetVolumeHealthResponse, error) {
	return d.healer.VolumeHealth(ctx, req)
}

func (driver) NodeGetCapabilities(context.Context, *csi.NodeGetCapabilitiesRequest) (*csi.NodeGetCapabilitiesResponse, error) {
	return &csi.NodeGetCapabilitiesResponse{Capabilities: []*csi.NodeServiceCapability{{
		Type: &csi.NodeServiceCapability_Rpc{Rpc: &csi.NodeServiceCapability_RPC{Type: csi.NodeServiceCapability_RPC_GET_VOLUME_HEALTH}},
	}}}, nil
}

func (driver) GetPluginInfo(context.Context, *csi.GetPluginInfoRequest) (*csi.GetPluginInfoResponse, error) {
	return &csi.GetPluginInfoResponse{Name: hello.Driver, VendorVersion: "hello-1"}, nil
}

func (driver) GetPluginCapabilities(context.Context, *csi.GetPluginCapabilitiesRequest) (*csi.GetPluginCapabilitiesResponse, error) {
	return &csi.GetPluginCapabilitiesResponse{}, nil
}

func (driver) Probe(context.Context, *csi.ProbeRequest) (*csi.ProbeResponse, error) {
	return &csi.ProbeResponse{Ready: wrapperspb.Bool(true)}, nil
}
