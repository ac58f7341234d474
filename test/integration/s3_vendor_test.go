package integration

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/csi-addons/node-healer/test/harness"
	"github.com/csi-addons/node-healer/test/harness/csidriver"
)

// TestVendorsBucket deletes the bucket under an rclone, which knows by heart what was in it:
// the driver with the healer in it names that in the next check that asks, and no credential.
func TestVendorsBucket(t *testing.T) {
	harness.NewHello(t)
	server := harness.NewS3(t, "key")
	t.Setenv("S3_KEY", "key")
	t.Setenv("S3_SECRET", harness.Canary)
	n := harness.NewNode(t)
	n.Binary = harness.BuildVendor(t, "driver")
	n.Args = []string{onHost, "--csi-socket=" + filepath.Join(n.Dir, "csi.sock"), "--s3=" + server.URL()}
	d := n.NewCSIDriver(csidriver.Mode{NoAddons: true, Daemon: server.Rclone("key", "--vfs-write-back=0s")})
	n.Start()
	v := d.NewVolume("v")
	n.Expect("healthy", d.Request(v))
	harness.Must(t, os.RemoveAll(server.Data()))
	soon(n, "abnormal", d.Request(v)) // an answer counts for 10 s
	n.Expect("abnormal", d.Request(v), "BucketGone (404, NoSuchBucket; not certain before ", "find out who deleted it")
	if strings.Contains(n.Log.String(), harness.Canary) {
		t.Error("the log has a secret")
	}
}
