package integration

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/csi-addons/spec/lib/go/identity"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/csi-addons/node-healer/pkg/api/healerpb"
	"github.com/csi-addons/node-healer/test/harness"
)

// TestFlagsTakeEffect shows the effect of those flags that no other test needs.
func TestFlagsTakeEffect(t *testing.T) {
	t.Run("name", func(t *testing.T) {
		for want, args := range map[string][]string{ownName: nil, "healer.example.com": {"--name=healer.example.com"}} {
			n := harness.NewNode(t, args...).Start()
			who, err := identity.NewIdentityClient(n.Conn).GetIdentity(within(t), &identity.GetIdentityRequest{})
			if err != nil || who.GetName() != want || who.GetVendorVersion() == "" {
				t.Errorf("got %v, %v, want %s", who, err, want)
			}
		}
	})
	t.Run("driver-name", func(t *testing.T) {
		n := harness.NewNode(t, "--standalone").Start()
		v := n.NewVolume("ext4", "whose")
		n.Expect("healthy", v.Request())
		ofAnotherDriver(t, v, v.ID)
		_, err := n.Call(v.Request())
		if status.Code(err) != codes.NotFound || !strings.Contains(err.Error(), "volume_id: names a volume of driver other.csi.example.com") {
			t.Errorf("another driver's volume: %v", err)
		}
		n.Stop()
		n.Args = append(n.Args, "--driver-name=other.csi.example.com")
		n.Start()
		n.Expect("healthy", v.Request())
	})
	t.Run("allowed-uids", func(t *testing.T) {
		n := harness.NewNode(t, "--allowed-uids=12345").StartUnanswered()
		v := n.NewVolume("tmpfs", "not for us")
		_, err := healerpb.NewHealerNodeClient(n.Conn).NodeHealer(within(t), v.Request(), grpc.WaitForReady(true))
		if status.Code(err) != codes.Unauthenticated || !strings.Contains(err.Error(), "--allowed-uids") {
			t.Errorf("got %v", err)
		}
	})
	t.Run("probe", func(t *testing.T) {
		n := harness.NewNode(t).Start()
		probe := func() ([]byte, error) {
			return exec.CommandContext(within(t), harness.Server(), "--probe", "--endpoint=unix://"+n.Socket()).CombinedOutput()
		}
		if out, err := probe(); err != nil || len(out) > 0 {
			t.Errorf("it serves: %v %s", err, out)
		}
		n.Stop()
		var exit *exec.ExitError
		if out, err := probe(); !errors.As(err, &exit) || exit.ExitCode() != 1 || !strings.Contains(string(out), n.Socket()) {
			t.Errorf("it has stopped: %v %s", err, out)
		}
	})
}

func within(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), harness.Patience)
	t.Cleanup(cancel)
	return ctx
}

// TestCommandLine shows what the program does without serving.
func TestCommandLine(t *testing.T) {
	harness.NeedsRoot(t)
	dir := t.TempDir()
	good := []string{
		"--driver-name=" + harness.Driver, "--kubelet-root=" + dir,
		"--state-dir=" + filepath.Join(dir, "state"), "--endpoint=unix://" + filepath.Join(dir, "run", "s.sock"),
	}
	for name, c := range map[string]struct {
		args []string
		code int
		says string
	}{
		"version":             {[]string{"--version"}, 0, "node-healer "},
		"help":                {[]string{"--help"}, 0, "-kubelet-root"},
		"no driver's name":    {append(slices.Clone(good), "--driver-name=-x"), 2, "--driver-name"},
		"a driver's own name": {append(slices.Clone(good), "--name="+harness.Driver), 2, "--name"},
		"a mode there is not": {append(slices.Clone(good), "--mode=fix"), 2, "--mode"},
		"a short timeout":     {append(slices.Clone(good), "--probe-timeout=1ms"), 2, "--probe-timeout"},
		"no duration":         {append(slices.Clone(good), "--heal-timeout=long"), 2, "-heal-timeout"},
		"no user id":          {append(slices.Clone(good), "--allowed-uids=root"), 2, "-allowed-uids"},
		"a flag there is not": {append(slices.Clone(good), "--force"), 2, "-force"},
		"an argument":         {append(slices.Clone(good), "stray"), 2, `"stray"`},
		"no kubelet root":     {append(slices.Clone(good), "--kubelet-root="+filepath.Join(dir, "none")), 1, filepath.Join(dir, "none")},
		"no unix socket":      {append(slices.Clone(good), "--endpoint=tcp://127.0.0.1:1"), 1, "unix:///"},
	} {
		t.Run(name, func(t *testing.T) {
			out, err := exec.CommandContext(within(t), harness.Server(), c.args...).CombinedOutput()
			code := 0
			var exit *exec.ExitError
			if errors.As(err, &exit) {
				code = exit.ExitCode()
			} else {
				harness.Must(t, err)
			}
			if code != c.code || !strings.Contains(string(out), c.says) {
				t.Errorf("exit code %d, want %d, with %q in:\n%s", code, c.code, c.says, out)
			}
		})
	}
}

// TestSecretsStayInTheServer sees that requests' secrets are in no core file, and
// that a worker gets nothing of the server's environment.
func TestSecretsStayInTheServer(t *testing.T) {
	t.Setenv("SOMETHING_SECRET", harness.Canary)
	n := harness.NewNode(t).Start()
	v := n.NewVolume("tmpfs", "checked")
	n.Expect("healthy", v.Request())
	n.Expect("healthy", v.Request()) // the first check takes a worker that is spent
	noCore := regexp.MustCompile(`(?m)^Max core file size +1 +1 `)
	limits, err := os.ReadFile(fmt.Sprintf("/proc/%d/limits", n.PID()))
	harness.Must(t, err)
	if !noCore.Match(limits) {
		t.Errorf("the server may leave a core file:\n%s", limits)
	}
	var workers []int
	harness.Eventually(t, "workers wait for work, and none is about to run its program, or has ended", func() bool {
		workers = n.Workers()
		return len(workers) > 0 && !slices.ContainsFunc(workers, func(pid int) bool {
			program, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", pid))
			return err != nil || filepath.Base(program) != "node-healer-worker"
		})
	})
	for _, pid := range workers {
		environ, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid))
		harness.Must(t, err)
		for _, variable := range strings.Split(strings.TrimSuffix(string(environ), "\x00"), "\x00") {
			name, _, _ := strings.Cut(variable, "=")
			// The last two are of test builds only.
			if !slices.Contains([]string{"GOMAXPROCS", "GOGC", "NODE_HEALER_PAUSE", coversDead}, name) {
				t.Errorf("a worker's environment has %q", variable)
			}
		}
		// Limits are inherited: a worker's memory holds no secret, its core file
		// would hold names of files.
		if limits, err := os.ReadFile(fmt.Sprintf("/proc/%d/limits", pid)); err != nil || !noCore.Match(limits) {
			t.Errorf("a worker may leave a core file: %v\n%s", err, limits)
		}
	}
}
