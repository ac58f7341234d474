package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/csi-addons/node-healer/test/harness"
	"github.com/csi-addons/node-healer/test/harness/cluster"
)

// kubeletRoot is where kubelet is by default, and where the manifest looks.
const kubeletRoot = "/var/lib/kubelet"

// kubeletConfig lets kubelet run on any machine, also on one with little memory or disk,
// and change nothing of it.
const kubeletConfig = `apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
containerRuntimeEndpoint: unix://%s
cgroupRoot: %s
cgroupDriver: cgroupfs
failCgroupV1: false
failSwapOn: false
protectKernelDefaults: true
makeIPTablesUtilChains: false
volumePluginDir: %s/volumeplugins
resolvConf: ""
enableServer: false
%simageGCHighThresholdPercent: 100
evictionHard:
  imagefs.available: 0%%
  nodefs.available: 0%%
  nodefs.inodesFree: 0%%
`

// startKubelet starts kubelet and waits until the node is ready.
func startKubelet(t testing.TB, c *cluster.Cluster) {
	t.Helper()
	config := filepath.Join(t.TempDir(), "kubelet.yaml")
	gates := "featureGates: {CSIVolumeHealth: true}\n"
	if os.Getenv("TEST_KUBERNETES") != "" { // an older one does not know it
		gates = ""
	}
	text := fmt.Sprintf(kubeletConfig, containerdSocket, os.Getenv(cgroupEnv), kubeletRoot, gates)
	harness.Must(t, os.WriteFile(config, []byte(text), 0o600))
	start(t, "kubelet", exec.Command(c.Kubelet(),
		"--config="+config, "--kubeconfig="+c.KubeletConfig(t, nodeName),
		"--root-dir="+kubeletRoot, "--hostname-override="+nodeName, "--node-ip="+nodeIP, "-v=2",
	))
	eventually(t, "the node is ready", func() error {
		_, err := c.TryKubectl("wait", "--for=condition=Ready", "--timeout=10s", "node/"+nodeName)
		return err
	})
}
