package integration

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/csi-addons/node-healer/pkg/api/healerpb"
	"github.com/csi-addons/node-healer/test/harness"
	"github.com/csi-addons/node-healer/test/harness/csidriver"
)

// onHost says that the tests' drivers run in no container.
const onHost = "--host-mount-namespace=/proc/self/ns/mnt"

// vendorsDriver starts the vendor's driver with the healer in it, as the node's server; its
// CSI socket is where kubelet looks for it.
func vendorsDriver(t *testing.T, args ...string) (n *harness.Node, d csidriver.Driver) {
	t.Helper()
	n = harness.NewNode(t)
	d = csidriver.Driver{Name: harness.Driver, Kubelet: n.Kubelet}
	harness.Must(t, os.MkdirAll(filepath.Dir(d.Socket()), 0o755))
	n.Binary = harness.BuildVendor(t, "driver")
	n.Args = append(args, onHost, "--csi-socket="+d.Socket())
	return n, d
}

// clientAs is a client in a user's process.
func clientAs(t *testing.T, socket string, uid int) *grpc.ClientConn {
	t.Helper()
	made := dialAs(t, uid, socket)
	conn, err := grpc.NewClient("passthrough:///"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(context.Context, string) (net.Conn, error) { return made, nil }))
	harness.Must(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// listens reports whether a server accepts connections at a socket.
func listens(socket string) bool {
	conn, err := net.Dial("unix", socket)
	if err == nil {
		_ = conn.Close()
	}
	return err == nil
}

// TestVendorsNodeHealer is node-healer with a provider of another module.
func TestVendorsNodeHealer(t *testing.T) {
	hello := harness.NewHello(t)
	n := harness.NewNode(t, "--standalone")
	n.Binary = harness.BuildVendor(t, "node-healer")
	n.Start()
	v := n.NewVolume("ext4", "of a vendor")
	healsHello(n, hello, v)
	hello.Says(v.ID, "panic")
	req := v.Request()
	req.Secrets, req.VolumeContext = nil, nil
	n.Expect("abnormal", req, "provider hello: ProviderFailed", "hello cannot read its own file")
	n.Expect("abnormal", v.Request(), "provider hello: ProviderFailed", "a value of type string")
}

func healsHello(n *harness.Node, hello harness.Hello, v *harness.Volume) {
	n.T.Helper()
	n.Expect("healthy", v.Request())
	before := n.Table()
	hello.Says(v.ID, "lost")
	n.Expect("healed", v.Request(), "HelloSessionLost", "hello lost its session", "hello-again")
	v.Unpublish()
	n.Expect("healed", v.Request(), "NotMounted", "rebind")
	n.SameTable(before)
	n.Expect("healthy", v.Request())
}

// TestVendorsDriverHeals: the driver heals its own condition and a lost bind, and nothing of
// others; a person asks it as node-healer.
func TestVendorsDriverHeals(t *testing.T) {
	hello := harness.NewHello(t)
	n, d := vendorsDriver(t)
	n.Start()
	v := n.NewVolume("ext4", "of a vendor")
	healsHello(n, hello, v)
	for _, line := range auditOf(t, n) {
		if line.Caller != "uid 0" || line.Driver != harness.Driver {
			t.Errorf("audit log: %+v", line)
		}
	}
	program := harness.BuildHealerctl(t)
	n.NewContainer(harness.PodUID, v.MountPoint()) // or nothing wants what is named by its ID alone
	for _, socket := range []string{n.Socket(), d.Socket()} {
		hello.Says(v.ID, "lost")
		out, err := exec.CommandContext(t.Context(), program, "heal", v.ID, "--endpoint=unix://"+socket).CombinedOutput()
		if err != nil || !strings.Contains(string(out), "hello-again") {
			t.Errorf("healerctl at %s: %v\n%s", socket, err, out)
		}
	}

	shown, err := exec.CommandContext(t.Context(), program, "status", "--endpoint=unix://"+n.Socket()).CombinedOutput()
	if err != nil || !strings.Contains(string(shown), "hello") || strings.Contains(string(shown), ", driver") {
		t.Errorf("healerctl status: %v\n%s", err, shown)
	}
	said, err := exec.CommandContext(t.Context(), program, "explain", "hellosessionlost", "--endpoint=unix://"+d.Socket()).CombinedOutput()
	if err != nil || !strings.Contains(string(said), "advice: see hello's log") {
		t.Errorf("healerctl explain: %v\n%s", err, said)
	}

	others := n.NewVolume("tmpfs", "of another driver")
	for _, dir := range []string{filepath.Dir(others.Staging), filepath.Dir(others.MountPoint())} {
		raw, err := os.ReadFile(filepath.Join(dir, "vol_data.json"))
		harness.Must(t, err)
		harness.Must(t, os.WriteFile(filepath.Join(dir, "vol_data.json"), bytes.ReplaceAll(raw, []byte(harness.Driver), []byte("other.csi.example.com")), 0o600))
	}
	if a, err := n.Call(others.Request()); err == nil {
		t.Errorf("another driver's volume: %v", a)
	}
	out, err := exec.CommandContext(t.Context(), program, "list", "-o", "json", "--endpoint=unix://"+n.Socket()).CombinedOutput()
	if err != nil || strings.Contains(string(out), others.ID) || !strings.Contains(string(out), v.ID) {
		t.Errorf("healerctl list: %v\n%s", err, out)
	}
}

// TestVendorsDriverRefuses: on the driver's own socket, which more than root may use, the
// healer looks at who calls, and the driver's own services do not.
func TestVendorsDriverRefuses(t *testing.T) {
	harness.NewHello(t)
	for name, bare := range map[string]bool{"guarded": false, "bare": true} {
		t.Run(name, func(t *testing.T) {
			dir, err := os.MkdirTemp("", "vendor") // t.TempDir is beneath a directory of root's
			harness.Must(t, err)
			t.Cleanup(func() { _ = os.RemoveAll(dir) })
			harness.Must(t, os.Chmod(dir, 0o755))
			socket := filepath.Join(dir, "csi.sock")
			n, _ := vendorsDriver(t, fmt.Sprintf("--bare=%v", bare))
			n.Args = append(n.Args, "--csi-socket="+socket)
			n.Start()
			v := n.NewVolume("tmpfs", "refused")
			harness.Eventually(t, "the driver listens", func() bool { return os.Chmod(socket, 0o777) == nil && listens(socket) })
			for uid, may := range map[int]bool{0: !bare, 1000: false} {
				conn := clientAs(t, socket, uid)
				_, err := healerpb.NewHealerNodeClient(conn).NodeHealer(t.Context(), v.Request())
				switch {
				case may && err != nil, !may && status.Code(err) != codes.Unauthenticated:
					t.Errorf("uid %d: %v", uid, err)
				case !may && !bare && (!strings.Contains(err.Error(), "uid 1000") || !strings.Contains(n.Log.String(), "uid=1000")):
					t.Errorf("neither error nor log name the caller: %v", err)
				}
				if _, err := csi.NewIdentityClient(conn).Probe(t.Context(), &csi.ProbeRequest{}); err != nil {
					t.Errorf("uid %d, the driver's own service: %v", uid, err)
				}
			}
		})
	}
}

// TestVendorsDriverNeedsHostPID: the tests' process 1 has their mount namespace, as a container's
// init has it in a pod without hostPID.
func TestVendorsDriverNeedsHostPID(t *testing.T) {
	n := harness.NewNode(t)
	out, err := exec.CommandContext(t.Context(), harness.BuildVendor(t, "driver"), "--kubelet-root="+n.Kubelet, "--state-dir="+n.StateDir()).CombinedOutput()
	if err == nil || !strings.Contains(string(out), "hostPID: true") || !strings.Contains(string(out), "HostMountNamespace") {
		t.Errorf("%v\n%s", err, out)
	}
}

// TestVendorsDriverBesideNodeHealer: node-healer shows what the driver finds of its volume,
// and has it heal.
func TestVendorsDriverBesideNodeHealer(t *testing.T) {
	hello := harness.NewHello(t)
	n := harness.NewNode(t, "--standalone", "--probe-timeout=30s") // the driver's first answer may take a while
	n.AnyDriver = true
	n.Start()
	d := csidriver.Driver{Name: harness.Driver, Kubelet: n.Kubelet}
	harness.Must(t, os.MkdirAll(filepath.Dir(d.Socket()), 0o700))
	driver := exec.CommandContext(t.Context(), harness.BuildVendor(t, "driver"), onHost, "--csi-socket="+d.Socket(), "--endpoint=unix://"+d.AddonsSocket(),
		"--kubelet-root="+n.Kubelet, "--state-dir="+filepath.Join(n.Dir, "driver-state"))
	driver.Stderr = os.Stderr
	harness.Must(t, driver.Start())
	t.Cleanup(func() {
		_ = driver.Process.Signal(unix.SIGTERM)
		_ = driver.Wait()
	})
	harness.Eventually(t, "the driver listens", func() bool {
		for _, socket := range []string{d.Socket(), d.AddonsSocket()} {
			if !listens(socket) {
				return false
			}
		}
		return true
	})
	v := n.NewVolume("ext4", "delegated")
	n.Expect("healthy", v.Request())
	before := n.Table()
	hello.Says(v.ID, "lost")
	n.Expect("abnormal", v.Request(), "DriverReportsAbnormal", "HelloSessionLost", "hello lost its session")
	hello.Says(v.ID, "ok")
	v.Unpublish()
	n.Expect("healed", v.Request(), "NotMounted", "delegate of the target.")
	n.SameTable(before)
	for _, dir := range []string{n.StateDir(), filepath.Join(n.Dir, "driver-state")} {
		if log, err := os.ReadFile(filepath.Join(dir, "audit.log")); err != nil || len(log) == 0 {
			t.Errorf("nothing in the audit log of %s: %v", dir, err)
		}
	}
}

// TestKillVendorsDriver kills the driver in the middle of a step: what is left is what
// node-healer leaves, its worker ends with it, and the next driver heals.
func TestKillVendorsDriver(t *testing.T) {
	harness.NewHello(t)
	for _, instant := range threeOf(instants) {
		t.Run(instant, func(t *testing.T) {
			n, _ := vendorsDriver(t)
			n.Pause = instant
			h := stopHealingOn(n.Start(), "ext4", (*harness.Volume).Unpublish)
			for _, worker := range n.Workers() {
				if harness.State(worker) != "T" {
					continue // it may only have begun
				}
				limits, err := os.ReadFile(fmt.Sprintf("/proc/%d/limits", worker))
				if err != nil || !strings.Contains(string(limits), "Max core file size        1                    1 ") {
					t.Errorf("a worker may dump its core: %v\n%s", err, limits)
				}
			}
			h.kill("server")
			h.n.SameTable(h.healthy)
			h.intact(h.v.MountPoint())
		})
	}
}
