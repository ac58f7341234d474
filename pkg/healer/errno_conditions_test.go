package healer

import (
	"slices"
	"syscall"
	"testing"

	"github.com/csi-addons/node-healer/pkg/facts"
)

func ofWrite(sb Superblock) (ConditionRow, bool) {
	return ConditionOf(OpWriteCheck, sb.Write.Errno, sb)
}

func TestConditionsOfErrnos(t *testing.T) {
	probed := func(fsType string, e syscall.Errno) Superblock {
		return Superblock{FSType: fsType, Answer: facts.Answer{Asked: true, Op: "statx", Errno: e}}
	}
	onDisk := func(op string, e syscall.Errno) Superblock {
		return Superblock{FSType: "ext4", Device: &facts.BlockDevice{}, Answer: facts.Answer{Asked: true, Op: op, Errno: e}}
	}
	written := func(e syscall.Errno) Superblock {
		return Superblock{FSType: "ext4", Write: facts.Write{Answer: facts.Answer{Asked: true, Op: "write", Errno: e}}}
	}
	// asked is whether its server is asked, too.
	for name, tc := range map[string]struct {
		rule        func(Superblock) (ConditionRow, bool)
		superblock  Superblock
		want        Reason
		serverAsked bool
	}{
		"no errno":                     {rule: ConditionOfProbe, superblock: probed("nfs4", 0)},
		"a server refuses":             {rule: ConditionOfProbe, superblock: probed("nfs4", syscall.EACCES), want: PermissionDenied},
		"Ceph evicted the node":        {rule: ConditionOfProbe, superblock: probed("ceph", syscall.ESHUTDOWN), want: PermissionDenied},
		"ESHUTDOWN of another":         {rule: ConditionOfProbe, superblock: probed("cifs", syscall.ESHUTDOWN), want: IOError, serverAsked: true},
		"a server has no such file":    {rule: ConditionOfProbe, superblock: probed("nfs4", syscall.ENOENT), want: IOError},
		"a stale handle":               {rule: ConditionOfProbe, superblock: probed("nfs4", syscall.ESTALE), want: StaleFileHandle},
		"no server answered":           {rule: ConditionOfProbe, superblock: probed("cifs", syscall.EHOSTDOWN), want: IOError, serverAsked: true},
		"a daemon is gone":             {rule: ConditionOfProbe, superblock: probed("fuse.glusterfs", syscall.ENOTCONN), want: Disconnected, serverAsked: true},
		"a disk is gone":               {rule: ConditionOfProbe, superblock: onDisk("statx", syscall.ENXIO), want: DeviceMissing},
		"ENXIO without a disk":         {rule: ConditionOfProbe, superblock: probed("fuse", syscall.ENXIO), want: IOError, serverAsked: true},
		"a read of the disk":           {rule: ConditionOfProbe, superblock: onDisk(facts.OpReadDevice, syscall.EIO), want: DeviceReadError},
		"a read of a disk that is off": {rule: ConditionOfProbe, superblock: onDisk(facts.OpReadDevice, syscall.ENODEV), want: DeviceMissing},
		"a probe of a read-only one":   {rule: ConditionOfProbe, superblock: probed("ext4", syscall.EROFS), want: IOError, serverAsked: true},
		"a write to a read-only one":   {rule: ofWrite, superblock: written(syscall.EROFS), want: ReadOnlyFilesystem},
		"a write that failed":          {rule: ofWrite, superblock: written(syscall.EIO), want: IOError, serverAsked: true},
	} {
		row, found := tc.rule(tc.superblock)
		if row.Reason != tc.want || found != (tc.want != "") || slices.Contains(row.Beside, ServerUnreachable) != tc.serverAsked {
			t.Errorf("%s: %+v, want %q", name, row, tc.want)
		}
	}
	for e := syscall.Errno(1); e < 134; e++ {
		row, _ := ConditionOfProbe(probed("fuse.x", e))
		if slices.Contains(row.Beside, DaemonGone) != facts.Disconnected(e) {
			t.Errorf("%s: the table and facts do not agree on whether the daemon is gone", facts.ErrnoName(e))
		}
	}
	for errno, want := range map[syscall.Errno]Reason{syscall.ECONNREFUSED: ServerUnreachable, syscall.ETIMEDOUT: ServerUnreachable, syscall.EACCES: "", syscall.EIO: "", 0: ""} {
		if row, _ := ConditionOf(OpConnect, errno, Superblock{}); row.Reason != want {
			t.Errorf("connection, %d: %+v, want %q", errno, row, want)
		}
	}
}
