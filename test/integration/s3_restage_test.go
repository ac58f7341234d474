package integration

import (
	"os"
	"strings"
	"testing"

	"github.com/csi-addons/node-healer/test/harness"
	"github.com/csi-addons/node-healer/test/harness/csidriver"
)

// TestRestageS3 has s3fs as the driver's daemon, on an S3 server. While it is dead its key
// is rotated, and its bucket deleted: it comes back once both are right again.
func TestRestageS3(t *testing.T) {
	server := harness.NewS3(t, "first")
	n, d := restaging(t, "unmount-first", csidriver.Mode{})
	first := csidriver.Mode{Stage: csidriver.DoesNothing, Daemon: server.S3FS("first")}
	second := csidriver.Mode{Stage: csidriver.DoesNothing, Daemon: server.S3FS("second")}
	d.Behave(first)
	v := d.NewVolume("v")
	n.Expect("healthy", d.Request(v))
	before, sum := d.Table(v), v.Sum(v.MountPoint())
	heals := func() {
		t.Helper()
		var said string
		harness.Eventually(t, "the volume is healed", func() bool {
			said = n.Message(d.Request(v))
			return strings.HasPrefix(said, "heal")
		})
		d.SameTable(v, before)
	}
	d.KillDaemon(v)
	heals()

	d.KillDaemon(v)
	server.Revoke("first")
	server.Allow("second")
	n.Expect("abnormal", d.Request(v), "restage of the staging mount point failed")
	d.Behave(second)
	heals()
	if v.Sum(v.MountPoint()) != sum {
		t.Error("the data is another one")
	}

	d.KillDaemon(v)
	away := server.Data() + ".away"
	harness.Must(t, os.Rename(server.Data(), away))
	n.Expect("abnormal", d.Request(v), "restage of the staging mount point failed")
	harness.Must(t, os.Rename(away, server.Data()))
	heals()
	if v.Sum(v.MountPoint()) != sum {
		t.Error("the data is another one")
	}
	if strings.Contains(n.Log.String(), harness.Canary) {
		t.Error("the log has a secret")
	}
}
