package driver

import (
	"context"
	"net"
	"os"
	"path/filepath"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
)

// socket is where kubelet calls the driver.
func socket(kubelet string) string { return filepath.Join(kubelet, "plugins", Name, "csi.sock") }

// registry is where kubelet looks for new drivers.
func registry(kubelet string) string {
	return filepath.Join(kubelet, "plugins_registry", Name+"-reg.sock")
}

// servePlugin serves CSI, and kubelet's questions about the driver, until it is
// killed.
func servePlugin(kubelet, volumes, nodeID string) error {
	calls, err := listen(socket(kubelet))
	if err != nil {
		return err
	}
	server := grpc.NewServer()
	csi.RegisterIdentityServer(server, identity{})
	csi.RegisterNodeServer(server, &node{id: nodeID, volumes: volumes})
	failed := make(chan error)
	go func() { failed <- server.Serve(calls) }()

	// Only then: kubelet calls the driver as soon as it sees this one.
	questions, err := listen(registry(kubelet))
	if err != nil {
		return err
	}
	registrar := grpc.NewServer()
	register(registrar, socket(kubelet))
	go func() { failed <- registrar.Serve(questions) }()
	return <-failed
}

// listen makes a socket, and its directory.
func listen(path string) (net.Listener, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o750); err != nil {
		return nil, err
	}
	return net.Listen("unix", path)
}

// identity says what driver this is.
type identity struct {
	csi.UnimplementedIdentityServer
}

func (identity) GetPluginInfo(context.Context, *csi.GetPluginInfoRequest) (*csi.GetPluginInfoResponse, error) {
	return &csi.GetPluginInfoResponse{Name: Name, VendorVersion: "1"}, nil
}

func (identity) GetPluginCapabilities(context.Context, *csi.GetPluginCapabilitiesRequest) (*csi.GetPluginCapabilitiesResponse, error) {
	return &csi.GetPluginCapabilitiesResponse{}, nil
}

func (identity) Probe(context.Context, *csi.ProbeRequest) (*csi.ProbeResponse, error) {
	return &csi.ProbeResponse{}, nil
}
