package healer

import (
	"slices"
	"syscall"
	"testing"

	"github.com/csi-addons/node-healer/pkg/facts"
)

func ofWrite(sb facts.Superblock) (ConditionRow, bool) {
	return ConditionOf(OpWriteCheck, sb.Write.Errno, sb)
}

func TestConditionsOfErrnos(t *testing.T) {
	probed := func(fsType string, e syscall.Errno) facts.Superblock {
		return facts.Superblock{FSType: fsType, Answer: facts.Answer{Asked: true, Op: "statx", Errno: e}}
	}
	onDisk := func(op string, e syscall.Errno) facts.Superblock {
		return facts.Superblock{FSType: "ext4", Device: &facts.BlockDevice{}, Answer: facts.Answer{Asked: true, Op: op, Errno: e}}
	}
	written := func(e syscall.Errno) facts.Superblock {
		return facts.Superblock{FSType: "ext4", Write: facts.Write{Answer: facts.Answer{Asked: true, Op: "write", Errno: e}}}
	}
	// asked is whether its server is asked, too.
	for name, tc := range map[string]struct {
		of    func(facts.Superblock) (ConditionRow, bool)
		sb    facts.Superblock
		want  Reason
		asked bool
	}{
		"no errno":                     {ConditionOfProbe, probed("nfs4", 0), "", false},
		"a server refuses":             {ConditionOfProbe, probed("nfs4", syscall.EACCES), PermissionDenied, false},
		"Ceph evicted the node":        {ConditionOfProbe, probed("ceph", syscall.ESHUTDOWN), PermissionDenied, false},
		"ESHUTDOWN of another":         {ConditionOfProbe, probed("cifs", syscall.ESHUTDOWN), IOError, true},
		"a server has no such file":    {ConditionOfProbe, probed("nfs4", syscall.ENOENT), IOError, false},
		"a stale handle":               {ConditionOfProbe, probed("nfs4", syscall.ESTALE), StaleFileHandle, false},
		"no server answered":           {ConditionOfProbe, probed("cifs", syscall.EHOSTDOWN), IOError, true},
		"a daemon is gone":             {ConditionOfProbe, probed("fuse.glusterfs", syscall.ENOTCONN), Disconnected, true},
		"a disk is gone":               {ConditionOfProbe, onDisk("statx", syscall.ENXIO), DeviceMissing, false},
		"ENXIO without a disk":         {ConditionOfProbe, probed("fuse", syscall.ENXIO), IOError, true},
		"a read of the disk":           {ConditionOfProbe, onDisk(facts.OpReadDevice, syscall.EIO), DeviceReadError, false},
		"a read of a disk that is off": {ConditionOfProbe, onDisk(facts.OpReadDevice, syscall.ENODEV), DeviceMissing, false},
		"a probe of a read-only one":   {ConditionOfProbe, probed("ext4", syscall.EROFS), IOError, true},
		"a write to a read-only one":   {ofWrite, written(syscall.EROFS), ReadOnlyFilesystem, false},
		"a write that failed":          {ofWrite, written(syscall.EIO), IOError, true},
	} {
		row, found := tc.of(tc.sb)
		if row.Reason != tc.want || found != (tc.want != "") || slices.Contains(row.Beside, ServerUnreachable) != tc.asked {
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
		if row, _ := ConditionOf(OpConnect, errno, facts.Superblock{}); row.Reason != want {
			t.Errorf("connection, %d: %+v, want %q", errno, row, want)
		}
	}
}
