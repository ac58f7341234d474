package csidriver_test

import (
	"context"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/kubernetes-csi/csi-test/v5/pkg/sanity"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"

	"github.com/csi-addons/node-healer/test/harness"
	"github.com/csi-addons/node-healer/test/harness/csidriver"
)

func TestMain(m *testing.M) {
	csidriver.Main()
	os.Exit(m.Run())
}

// TestSanity runs csi-sanity (github.com/kubernetes-csi/csi-test) against the driver: what
// it does where its mode says nothing is what drivers do.
func TestSanity(t *testing.T) {
	harness.NeedsRoot(t)
	dir := t.TempDir()
	d := csidriver.Driver{Kubelet: filepath.Join(dir, "kubelet"), Volumes: filepath.Join(dir, "volumes"), NodeID: "node-1"}
	plugin := d.Command()
	plugin.Stdout, plugin.Stderr = os.Stderr, os.Stderr
	plugin.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	harness.Must(t, plugin.Start())
	t.Cleanup(func() {
		_ = unix.Kill(-plugin.Process.Pid, unix.SIGKILL)
		_ = plugin.Wait()
	})
	conn, err := d.Dial()
	harness.Must(t, err)
	defer conn.Close()
	ctx, cancel := context.WithTimeout(t.Context(), harness.Patience)
	defer cancel()
	_, err = csi.NewIdentityClient(conn).Probe(ctx, &csi.ProbeRequest{}, grpc.WaitForReady(true))
	harness.Must(t, err)

	config := sanity.NewTestConfig()
	config.Address = "unix://" + d.Socket()
	config.TargetPath = filepath.Join(dir, "target")
	config.StagingPath = filepath.Join(dir, "staging")
	config.TestVolumeSize = 1 << 20
	sanity.Test(t, config)
}
