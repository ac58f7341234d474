package watch

import (
	"testing"

	"github.com/csi-addons/node-healer/pkg/healer"
	"github.com/csi-addons/node-healer/pkg/host"
)

func TestBackend(t *testing.T) {
	const group = "0123456789abcdef0123456789abcdef"
	for name, tc := range map[string]struct {
		sb   host.Superblock
		want string
	}{
		"a server":         {host.Superblock{FSType: "nfs4", Source: "10.0.0.1:/export"}, "server 10.0.0.1"},
		"a logical volume": {host.Superblock{FSType: "ext4", Device: &host.BlockDevice{Identity: host.Identity{DMUUID: "LVM-" + group + "ffffffff"}}}, "volume group " + group},
		"another mapping":  {host.Superblock{FSType: "ext4", Device: &host.BlockDevice{Identity: host.Identity{DMUUID: "CRYPT-LUKS2-1"}}}, "driver d"},
		"a short one":      {host.Superblock{FSType: "ext4", Device: &host.BlockDevice{Identity: host.Identity{DMUUID: "LVM-1"}}}, "driver d"},
		"a partition":      {host.Superblock{FSType: "xfs", Device: &host.BlockDevice{Identity: host.Identity{WWID: "naa.5", Serial: "s", Partition: "2"}}}, "disk naa.5"},
		"one of a serial":  {host.Superblock{FSType: "xfs", Device: &host.BlockDevice{Identity: host.Identity{Serial: "s", Partition: "2"}}}, "disk s"},
		"a disk":           {host.Superblock{FSType: "xfs", Device: &host.BlockDevice{Identity: host.Identity{WWID: "naa.5"}}}, "driver d"},
		"no disk":          {host.Superblock{FSType: "tmpfs"}, "driver d"},
	} {
		var r healer.Report
		r.After.Case.Superblocks = map[host.Dev]host.Superblock{{Minor: 1}: tc.sb}
		if got := backendOf(r, "d"); got != tc.want {
			t.Errorf("%s: %q, want %q", name, got, tc.want)
		}
	}
}
