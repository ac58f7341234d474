package integration

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"

	"github.com/csi-addons/node-healer/test/harness"
	"github.com/csi-addons/node-healer/test/harness/csidriver"
)

// TestRestageLongSource has the driver bring nothing for a FUSE mount whose source is
// longer than fsconfig(2) takes, 255 bytes: the staging path is not left bare, and the
// volume comes back once the driver brings it.
func TestRestageLongSource(t *testing.T) {
	source := "s3://" + strings.Repeat("source-of-a-bucket/", 20)
	n, d := restaging(t, "unmount-first", csidriver.Mode{Source: source})
	v := d.NewVolume("v")
	n.Expect("healthy", d.Request(v))
	before := d.Table(v)
	for name, mode := range map[string]csidriver.Mode{
		"RestageHadNoEffect": {Stage: csidriver.NeverBare},
		"INTERNAL":           {Answers: map[string]csidriver.Answer{"NodeStageVolume": {Code: codes.Internal}}},
	} {
		d.KillDaemon(v)
		d.Behave(mode)
		n.Expect("abnormal", d.Request(v), "restage of the staging mount point failed", name)
		disconnected(t, v.Staging)
		disconnected(t, v.MountPoint())
		stood := harness.Layers(t, v.Staging)
		if len(stood) != 1 || len(stood[0].Source) != 255 || !strings.HasPrefix(source, stood[0].Source) {
			t.Errorf("at the staging path is %+v", stood)
		}
		d.Behave(csidriver.Mode{Source: source})
		n.Stop()
		n.Start() // it forgets whom it leaves alone
		n.Expect("healed", d.Request(v), "restage of the staging mount point; ", "; replace of the target")
		d.SameTable(v, before)
	}
}

// TestRestageOverFiles has files lie in the directory beneath the dead mount, which nothing
// may hide: that is found out before the dead mount is taken off.
func TestRestageOverFiles(t *testing.T) {
	n, d := restaging(t, "unmount-first", csidriver.Mode{})
	v := d.NewVolume("v")
	n.Expect("healthy", d.Request(v))
	d.KillDaemon(v)
	around, err := unix.OpenTree(unix.AT_FDCWD, filepath.Dir(v.Staging), unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
	harness.Must(t, err)
	harness.Must(t, os.WriteFile(fmt.Sprintf("/proc/self/fd/%d/%s/file-of-somebody", around, filepath.Base(v.Staging)), nil, 0o600))
	harness.Must(t, unix.Close(around))
	dead := n.Table()
	n.Expect("abnormal", d.Request(v), "restage of the staging mount point failed", "TargetNotEmpty")
	n.SameTable(dead)
}
