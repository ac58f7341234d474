package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/csi-addons/node-healer/test/harness"
)

const (
	containerdSocket = "/run/containerd/containerd.sock"
	// cniPrograms is where Debian has them.
	cniPrograms = "/usr/lib/cni"
)

// containerdConfig asks for as little as there may be: copies of images instead
// of overlays, nothing in the machine's /opt and in its AppArmor, and no better
// a score for the OOM killer than the machine lets us have.
const containerdConfig = `version = 2

[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "` + busyboxImage + `"
  restrict_oom_score_adj = true
  disable_apparmor = true
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "native"
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "` + cniPrograms + `"
    conf_dir = "/run/cni"

[plugins."io.containerd.internal.v1.opt"]
  path = "/var/lib/containerd/opt"
`

// cniConfig returns every pod a veth pair to the node, and nothing beyond it.
const cniConfig = `{
  "cniVersion": "0.4.0",
  "name": "e2e",
  "plugins": [{
    "type": "ptp",
    "ipam": {"type": "host-local", "subnet": "198.51.100.0/24", "routes": [{"dst": "0.0.0.0/0"}]}
  }]
}
`

// startContainerd starts containerd with a configuration of its own and brings
// the images in.
func startContainerd(t testing.TB, images ...image) {
	t.Helper()
	harness.Mkdir(t, "/run/cni")
	harness.Must(t, os.WriteFile("/run/cni/10-e2e.conflist", []byte(cniConfig), 0o600))
	config := filepath.Join(t.TempDir(), "config.toml")
	harness.Must(t, os.WriteFile(config, []byte(containerdConfig), 0o600))
	start(t, "containerd", exec.Command("containerd", "--config", config, "--address", containerdSocket))
	eventually(t, "containerd answers", func() error {
		_, err := ctr("version")
		return err
	})
	for _, i := range images {
		_, err := ctr("images", "import", "--snapshotter", "native", i.archive(t))
		harness.Must(t, err)
	}
}

// ctr is containerd's own client, in the namespace of kubelet's containers.
func ctr(args ...string) (string, error) {
	return run("ctr", append([]string{"--address", containerdSocket, "--namespace", "k8s.io"}, args...)...)
}
