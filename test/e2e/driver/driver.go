// Package driver is a small CSI node driver with FUSE daemons, for tests that
// have a kubelet. A volume is a directory of the node, which a daemon shows
// through FUSE: what was written outlives the daemon. When a daemon has died, the
// driver mounts its volume again as soon as it is told to stage it, as many do.
//
// Plugin and daemons are processes of their own, the test binary once more.
package driver

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
)

// Name is the driver's name.
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
	var err error
	switch os.Getenv(roleEnv) {
	case plugin:
		err = servePlugin(os.Args[1], os.Args[2], os.Args[3])
	case daemon:
		err = serveDaemon(os.Args[1], os.Args[2], os.Args[3])
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
	// Kubelet is kubelet's root directory.
	Kubelet string
	// Volumes is where the volumes are.
	Volumes string
	// NodeID is what the driver calls the node.
	NodeID string
}

// Command is the driver's plugin: kubelet finds it by itself.
func (d Driver) Command() *exec.Cmd {
	return part(plugin, d.Kubelet, d.Volumes, d.NodeID)
}

// Dial connects to the plugin, as kubelet does.
func (d Driver) Dial() (*grpc.ClientConn, error) {
	return grpc.NewClient("unix://"+socket(d.Kubelet), grpc.WithTransportCredentials(insecure.NewCredentials()))
}

// Data is the directory with a volume's content.
func (d Driver) Data(volume string) string { return filepath.Join(d.Volumes, volume, "data") }

// part is this program as a part of the driver.
func part(role string, args ...string) *exec.Cmd {
	cmd := exec.Command("/proc/self/exe", args...)
	cmd.Env = append(os.Environ(), roleEnv+"="+role)
	return cmd
}
