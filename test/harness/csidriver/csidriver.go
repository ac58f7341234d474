// Package csidriver is a small CSI driver with FUSE daemons, for tests. A volume is a
// directory of the node, which a daemon shows through FUSE: what was written outlives the
// daemon. It behaves as its Mode says, which a test may change while it runs: as well as
// a driver can, as those that are known do, or in a hostile way.
//
// Plugin and daemons are processes of their own, the test binary once more.
package csidriver

import (
	"cmp"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/csi-addons/node-healer/pkg/nodehealer"
)

// Name is the driver's name, unless it is given another one.
const Name = "fuse.csi.example.com"

// roleEnv makes a process a part of the driver, and says which.
const (
	roleEnv = "NODE_HEALER_TEST_CSI_DRIVER"
	plugin  = "plugin"
	daemon  = "daemon"
)

// Main is the driver. A TestMain calls it first: in a process that was not
// started as a part of the driver it returns at once, otherwise never.
func Main() {
	nodehealer.MaybeWorker()
	var err error
	switch os.Getenv(roleEnv) {
	case plugin:
		err = servePlugin(Driver{Name: os.Args[1], Kubelet: os.Args[2], Volumes: os.Args[3], NodeID: os.Args[4]})
	case daemon:
		err = serveDaemon(os.Args[1], os.Args[2], os.Args[3], os.Args[4], os.Args[5])
	default:
		return
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, os.Getenv(roleEnv)+":", err)
		os.Exit(1)
	}
	os.Exit(0)
}

// Driver is the driver on one node.
type Driver struct {
	// Name is the driver's name; empty: Name.
	Name string
	// Kubelet is kubelet's root directory.
	Kubelet string
	// Volumes is where the volumes are, and the mode.
	Volumes string
	// NodeID is what the driver calls the node.
	NodeID string
}

// Command is the driver's plugin: kubelet finds it by itself.
func (d Driver) Command() *exec.Cmd {
	return part(plugin, d.name(), d.Kubelet, d.Volumes, d.NodeID)
}

// Serve is the plugin in this process. It returns with an error only.
func (d Driver) Serve() error { return servePlugin(d) }

// Dial connects to the plugin, as kubelet does.
func (d Driver) Dial() (*grpc.ClientConn, error) {
	return grpc.NewClient("unix://"+d.Socket(), grpc.WithTransportCredentials(insecure.NewCredentials()))
}

// Data is the directory with a volume's content.
func (d Driver) Data(volume string) string { return filepath.Join(d.Volumes, volume, "data") }

// Socket is where kubelet calls the driver.
func (d Driver) Socket() string { return d.beside("csi.sock") }

// AddonsSocket is where the driver serves CSI-Addons.
func (d Driver) AddonsSocket() string { return d.beside("csi-addons.sock") }

func (d Driver) beside(name string) string {
	return filepath.Join(d.Kubelet, "plugins", d.name(), name)
}

// Registry is where kubelet looks for new drivers.
func (d Driver) Registry() string {
	return filepath.Join(d.Kubelet, "plugins_registry", d.name()+"-reg.sock")
}

func (d Driver) name() string { return cmp.Or(d.Name, Name) }

// Capability is that of the driver's volumes.
func Capability() *csi.VolumeCapability {
	return &csi.VolumeCapability{
		AccessType: &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{}},
		AccessMode: &csi.VolumeCapability_AccessMode{Mode: csi.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER},
	}
}

// part is this program as a part of the driver.
func part(role string, args ...string) *exec.Cmd {
	cmd := exec.Command("/proc/self/exe", args...)
	cmd.Env = append(os.Environ(), roleEnv+"="+role)
	return cmd
}
