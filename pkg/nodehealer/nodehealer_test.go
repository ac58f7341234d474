package nodehealer

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
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
	began.Store(false)
	if _, err := New(Config{Driver: "d", StateDir: t.TempDir()}); err == nil || !strings.Contains(err.Error(), "MaybeWorker") {
		t.Errorf("without MaybeWorker, with which each worker would be one more driver: %v", err)
	}
	MaybeWorker()
	for says, cfg := range map[string]Config{
		"StateDir":       {Driver: "d"},
		"driver name":    {StateDir: t.TempDir()},
		"root directory": {Driver: "d", StateDir: t.TempDir(), HostMountNamespace: "/proc/self/ns/mnt", KubeletRoot: "/no/such/kubelet"},
		"twice":          {Driver: "d", StateDir: t.TempDir(), HostMountNamespace: "/proc/self/ns/mnt", ProbeTimeout: 61 * time.Second},
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
	needsRoot(t)
	MaybeWorker()
	for namespace, want := range map[string]string{"": "csi-addons-node-healer/node-healer", "kube-system": "kube-system/node-healer"} {
		h, err := New(Config{
			Driver: "d", StateDir: t.TempDir(), HostMountNamespace: "/proc/self/ns/mnt", KubeletRoot: t.TempDir(),
			Gate: Kubernetes(&rest.Config{Host: "https://127.0.0.1:1"}, "node-1"), PolicyNamespace: namespace,
		})
		if err != nil {
			t.Fatal(err)
		}
		dir := t.TempDir() // a driver's, in which its own socket is not yet
		if err := os.Chmod(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		endpoint := "unix://" + filepath.Join(dir, "s")
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
		if info, err := os.Stat(dir); err != nil || info.Mode().Perm() != 0o755 {
			t.Errorf("the directory: %v, %v", info.Mode(), err)
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

// TestWorkersInheritNothing of a driver, which may leave descriptors open over exec(2); and
// Close leaves none of them behind.
func TestWorkersInheritNothing(t *testing.T) {
	needsRoot(t)
	MaybeWorker()
	t.Setenv("DRIVERS_SECRET", "hunter2")
	var pipe [2]int
	if err := unix.Pipe(pipe[:]); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = errors.Join(unix.Close(pipe[0]), unix.Close(pipe[1])) }()
	left, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", pipe[0]))
	if err != nil {
		t.Fatal(err)
	}
	kubelet := t.TempDir()
	h, err := New(Config{Driver: "d", StateDir: t.TempDir(), HostMountNamespace: "/proc/self/ns/mnt", KubeletRoot: kubelet})
	if err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(time.Minute); len(children(t)) == 0; { // on a busy machine one may not begin in time
		if time.Now().After(end) {
			t.Fatal("no worker was asked")
		}
		_, _ = h.VolumeHealth(t.Context(), &csi.NodeGetVolumeHealthRequest{VolumeId: "v", VolumePublishPath: kubelet + "/none"})
	}
	var has []string
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(10 * time.Millisecond) { // one may only have begun
		if has = inherited(t, left, "hunter2"); len(has) == 0 {
			break
		}
	}
	if len(has) > 0 {
		t.Errorf("workers have the driver's %q", has)
	}
	if err := h.Close(); err != nil {
		t.Error(err)
	}
	for end := time.Now().Add(time.Minute); len(children(t)) > 0; time.Sleep(10 * time.Millisecond) { // one that was killed may not have ended
		if time.Now().After(end) {
			t.Fatalf("%v are left", children(t))
		}
	}
}

// inherited returns the descriptors of children that lead to file, and what has secret of their
// environments.
func inherited(t *testing.T, file, secret string) (has []string) {
	t.Helper()
	for _, pid := range children(t) {
		if environ, _ := os.ReadFile("/proc/" + pid + "/environ"); strings.Contains(string(environ), secret) {
			has = append(has, string(environ))
		}
		open, err := filepath.Glob("/proc/" + pid + "/fd/*")
		if err != nil {
			t.Fatal(err)
		}
		for _, fd := range open {
			if to, _ := os.Readlink(fd); to == file {
				has = append(has, fd)
			}
		}
	}
	return has
}

// children returns the processes that this one started.
func children(t *testing.T) (pids []string) {
	t.Helper()
	lists, err := filepath.Glob("/proc/self/task/*/children")
	if err != nil || len(lists) == 0 {
		t.Fatal(lists, err)
	}
	for _, list := range lists {
		if text, err := os.ReadFile(list); err == nil { // or the thread has ended
			pids = append(pids, strings.Fields(string(text))...)
		}
	}
	return pids
}

func needsRoot(t *testing.T) {
	t.Helper()
	if os.Getuid() != 0 {
		if os.Getenv("CI") != "" {
			t.Fatal("needs root, and in CI a test that would skip fails")
		}
		t.Skip("needs root, to enter a mount namespace and to call")
	}
}
