package nodehealer

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"k8s.io/client-go/rest"

	"github.com/csi-addons/node-healer/internal/setup"
	"github.com/csi-addons/node-healer/pkg/api/adminpb"
)

func TestMain(m *testing.M) {
	setup.MaybeWorker() // as main does, but for what the first test wants to see
	os.Exit(m.Run())
}

func TestNewSaysWhatIsMissing(t *testing.T) {
	if _, err := New(Config{Driver: "d", StateDir: t.TempDir()}); err == nil || !strings.Contains(err.Error(), "MaybeWorker") {
		t.Errorf("without MaybeWorker, with which each worker would be one more driver: %v", err)
	}
	MaybeWorker()
	for says, cfg := range map[string]Config{
		"StateDir":       {Driver: "d"},
		"driver name":    {StateDir: t.TempDir()},
		"root directory": {Driver: "d", StateDir: t.TempDir(), HostMountNamespace: "/proc/self/ns/mnt", KubeletRoot: "/no/such/kubelet"},
		"/no/such/ns":    {Driver: "d", StateDir: t.TempDir(), HostMountNamespace: "/no/such/ns"},
	} {
		if h, err := New(cfg); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%+v: %v does not say %q", cfg, err, says)
			_ = h.Close()
		}
	}
}

// TestPolicyNamespace asks as healerctl status does.
func TestPolicyNamespace(t *testing.T) {
	if os.Getuid() != 0 {
		if os.Getenv("CI") != "" {
			t.Fatal("needs root, and in CI a test that would skip fails")
		}
		t.Skip("needs root, to enter a mount namespace and to call")
	}
	MaybeWorker()
	for namespace, want := range map[string]string{"": "csi-addons-node-healer/node-healer", "kube-system": "kube-system/node-healer"} {
		h, err := New(Config{
			Driver: "d", StateDir: t.TempDir(), HostMountNamespace: "/proc/self/ns/mnt", KubeletRoot: t.TempDir(),
			Gate: Kubernetes(&rest.Config{Host: "https://127.0.0.1:1"}, "node-1"), PolicyNamespace: namespace,
		})
		if err != nil {
			t.Fatal(err)
		}
		endpoint := "unix://" + filepath.Join(t.TempDir(), "s")
		conn, err := grpc.NewClient(endpoint, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithDefaultCallOptions(grpc.WaitForReady(true)))
		if err != nil {
			t.Fatal(err)
		}
		ended := make(chan error, 1)
		go func() { ended <- h.ListenAndServe(endpoint) }()
		status, err := adminpb.NewAdminClient(conn).GetStatus(t.Context(), &adminpb.GetStatusRequest{})
		if err != nil || !strings.Contains(status.String(), want) {
			t.Errorf("%v, %v", status, err)
		}
		_ = conn.Close()
		if err := h.Close(); err != nil {
			t.Error(err)
		}
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
}
