package mounts

import (
	"syscall"
	"testing"

	"github.com/csi-addons/node-healer/pkg/healer"
	"github.com/csi-addons/node-healer/test/harness/cases"
)

// refused is a filesystem that refuses root.
func refused(e syscall.Errno, fsType string, options ...string) func() healer.Case {
	return cases.With(cases.Unrecorded, probe(e), superblock(func(sb *healer.Superblock) { sb.FSType, sb.Device = fsType, nil }), func(c *healer.Case) {
		for i := range c.MountPoints {
			m := &c.MountPoints[i].Stack[0]
			m.FSType, m.SuperOptions = fsType, options
		}
	})
}

// TestRootSquashIsNotInaccessible: a server that tells the attributes of the root
// directory admits the node, and pods have other users than root.
func TestRootSquashIsNotInaccessible(t *testing.T) {
	for _, tc := range []struct {
		fsType, op string
		want       healer.Status
	}{
		{"nfs4", "open", healer.Degraded}, {"nfs", "statx", healer.Inaccessible}, {"fuse.x", "open", healer.Inaccessible},
	} {
		c := refused(syscall.EACCES, tc.fsType)()
		superblock(func(sb *healer.Superblock) { sb.Answer.Op = tc.op })(&c)
		f, err := New(idle{t}).Examine(c)
		if err != nil || len(f.Conditions) != 1 || f.Conditions[0].Reason != healer.PermissionDenied || f.Conditions[0].Status != tc.want {
			t.Errorf("%s, %s: %+v %v", tc.fsType, tc.op, f.Conditions, err)
		}
	}
}

// why is the one condition of a refusal.
func why(text string) []string { return []string{"PermissionDenied target: " + text} }

var deniedExamples = []example{
	{name: "ceph", build: refused(syscall.EACCES, "ceph"), want: why("blocklisted")},
	{name: "ceph, by FUSE", build: refused(syscall.EACCES, "fuse.ceph-fuse"), want: why("blocklisted")},
	{
		name:  "FUSE for one user",
		build: refused(syscall.EACCES, "fuse.sshfs", "rw", "user_id=1000"),
		want:  why("without allow_other"),
	},
	{
		name:  "FUSE for all",
		build: refused(syscall.EACCES, "fuse.sshfs", "rw", "allow_other"),
		want:  why("the daemon itself refuses"),
	},
	{name: "FUSE without a name, for one user", build: refused(syscall.EPERM, "fuse"), want: why("without allow_other")},
	{
		name:  "FUSE on a disk, for all",
		build: refused(syscall.EACCES, "fuseblk", "allow_other", "blksize=4096"),
		want:  why("the daemon itself refuses"),
	},
	{name: "ceph, a client that was evicted", build: refused(syscall.ESHUTDOWN, "ceph"), want: why("blocklisted")},
	{name: "no ceph", build: refused(syscall.ESHUTDOWN, "fuse.sshfs"), want: []string{"IOError target: ESHUTDOWN"}},
	{
		name:  "an NFS export",
		build: refused(syscall.EACCES, "nfs4", "sec=sys", "vers=4.2"),
		want:  why("does not admit this node"),
	},
	{name: "NFS 3", build: refused(syscall.EPERM, "nfs"), want: why("does not admit this node")},
	{name: "NFS with Kerberos", build: refused(syscall.EACCES, "nfs4", "sec=krb5"), want: why("Kerberos")},
	{
		name:  "NFS with Kerberos, private",
		build: refused(syscall.EKEYEXPIRED, "nfs", "vers=3", "sec=krb5p"),
		want:  why("Kerberos"),
	},
	{name: "an SMB share", build: refused(syscall.EACCES, "cifs"), want: why("on SMB")},
	{name: "SMB, by its other name", build: refused(syscall.ENOKEY, "smb3"), want: why("on SMB")},
	{name: "ext4", build: refused(syscall.EPERM, "ext4"), want: why("no usual cause is known for ext4")},
	{
		name:  "a type that only starts alike",
		build: refused(syscall.EACCES, "fusectl"),
		want:  why("no usual cause is known for fusectl"),
	},
	{name: "a key revoked", build: refused(syscall.EKEYREVOKED, "ceph"), want: why("blocklisted")},
	{name: "a key rejected", build: refused(syscall.EKEYREJECTED, "cifs"), want: why("on SMB")},
	{
		name:  "a write is refused",
		build: cases.With(wrote("write", syscall.EACCES)),
		want:  why("write: permission denied (EACCES); no usual cause is known for ext4"),
	},
}
