package integration

import (
	"fmt"
	"strings"
	"testing"

	"github.com/csi-addons/node-healer/pkg/api/healerpb"
	"github.com/csi-addons/node-healer/test/harness"
	"github.com/csi-addons/node-healer/test/harness/csidriver"
)

// TestLookupAfterRestage has the key of a volume revoked, and its rclone killed. The driver
// starts another one, which mounts and can read nothing: that is not called healed, and the
// dead mount of the container is not replaced by one that is no better. Once the key is good
// again, it is.
func TestLookupAfterRestage(t *testing.T) {
	server := harness.NewS3(t, "key")
	n, d := restaging(t, "unmount-first", csidriver.Mode{Stage: csidriver.DoesNothing, Daemon: server.Rclone("key", "--vfs-write-back=0s")})
	v := d.NewVolume("v")
	c := n.StartContainer(harness.ContainerSpec{
		Mounts: []harness.ContainerMount{{At: "/data", Source: v.MountPoint()}},
		Loop:   &harness.Loop{Read: "/data/a"},
	})
	n.Expect("healthy", d.Request(v))
	before, sum := d.Table(v), v.Sum(v.MountPoint())
	awaitWritten(t, v, server.Data())
	server.Revoke("key")
	d.KillDaemon(v)
	n.Expect("abnormal", d.Request(v), "restage of the staging mount point. ", "BackendUnreachable", "EIO")
	n.Expect("abnormal", d.Request(v), "BackendUnreachable", "EIO", fmt.Sprintf("process %d rclone", daemonOf(t, d, v)), "Nothing was changed")
	if said := n.Message(d.Request(v)); strings.Contains(said, "its server") {
		t.Errorf("a server that refuses a key is called silent: %s", said)
	}
	server.Allow("key")
	n.Expect("healed", d.Request(v), "replace of the target", "replace-in-container")
	d.SameTable(v, before)
	if v.Sum(v.MountPoint()) != sum {
		t.Error("the data is another one")
	}
	if got := c.AwaitTurns(); got.Reads != got.Turns || c.Starts() != 1 {
		t.Errorf("the loop in the container, started %d times, comes by this: %+v, and has met %q", c.Starts(), got, c.Errors())
	}
	if strings.Contains(n.Log.String(), harness.Canary) {
		t.Error("the log has a secret")
	}
}

// TestLookupWhileServerIsAway has the server of s3fs answer nothing. A lost bind is not called
// healed until it answers again.
func TestLookupWhileServerIsAway(t *testing.T) {
	server := harness.NewS3(t, "key")
	n := harness.NewNode(t, "--standalone", "--probe-timeout=500ms")
	d := n.NewCSIDriver(csidriver.Mode{NoAddons: true, Daemon: server.S3FS("key")})
	n.Start()
	v := d.NewVolume("v")
	soon(n, "healthy", d.Request(v))
	before, sum := d.Table(v), v.Sum(v.MountPoint())
	server.Suspend()
	untilSays(n, d.Request(v), "abnormal:", "BackendUnreachable", "no answer within", fmt.Sprintf("process %d s3fs", daemonOf(t, d, v)))
	untilSays(n, d.Request(v), "abnormal:", "it is connected to "+server.Address()) // the kernel acknowledges for it
	v.Unpublish()
	untilSays(n, d.Request(v), "abnormal:", "BackendUnreachable", "NotMounted")
	server.Resume()
	soon(n, "healed", d.Request(v))
	d.SameTable(v, before)
	if v.Sum(v.MountPoint()) != sum {
		t.Error("the data is another one")
	}
}

// TestLookupNamesServer has what the server sends to s3fs lost on its way into the network of
// the daemon's pod.
func TestLookupNamesServer(t *testing.T) {
	network := harness.NewNetwork(t)
	server := harness.NewS3At(t, network.Host(), "key")
	n := harness.NewNode(t, "--standalone", "--probe-timeout=500ms")
	d := n.NewCSIDriver(csidriver.Mode{NoAddons: true, Daemon: network.Inside(server.S3FS("key"))})
	n.Start()
	v := d.NewVolume("v")
	soon(n, "healthy", d.Request(v))
	network.Lose()
	untilSays(n, d.Request(v), "its server "+server.Address()+" has not answered (")
	network.Restore()
	soon(n, "healthy", d.Request(v))
}

// untilSays asks until the answer has some words.
func untilSays(n *harness.Node, r *healerpb.NodeHealerRequest, words ...string) {
	n.T.Helper()
	said := ""
	defer func() {
		if n.T.Failed() {
			n.T.Log(said)
		}
	}()
	harness.Eventually(n.T, strings.Join(words, ", "), func() bool {
		said = n.Message(r)
		return saysAll(said, words...)
	})
}

// daemonOf returns the process of a volume's last daemon.
func daemonOf(t *testing.T, d *harness.CSIDriver, v *harness.Volume) int {
	t.Helper()
	pid, err := d.Daemon(v.ID)
	harness.Must(t, err)
	return pid
}
