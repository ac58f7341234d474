package mounts

import (
	"syscall"
	"testing"

	"github.com/csi-addons/node-healer/pkg/facts"
	"github.com/csi-addons/node-healer/pkg/healer"
)

// refused is a filesystem that refuses root.
func refused(e syscall.Errno, fsType string, options ...string) func() healer.Case {
	return with(unrecorded, probe(e), superblock(func(sb *facts.Superblock) { sb.FSType, sb.Device = fsType, nil }), func(c *healer.Case) {
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
		superblock(func(sb *facts.Superblock) { sb.Answer.Op = tc.op })(&c)
		f, err := New(idle{t}).Examine(c)
		if err != nil || len(f.Conditions) != 1 || f.Conditions[0].Reason != healer.PermissionDenied || f.Conditions[0].Status != tc.want {
			t.Errorf("%s, %s: %+v %v", tc.fsType, tc.op, f.Conditions, err)
		}
	}
}

// why is the one condition of a refusal.
func why(text string) []string { return []string{"PermissionDenied target: " + text} }

var deniedExamples = []example{
	{"ceph", refused(syscall.EACCES, "ceph"), why("blocklisted")},
	{"ceph, by FUSE", refused(syscall.EACCES, "fuse.ceph-fuse"), why("blocklisted")},
	{"FUSE for one user", refused(syscall.EACCES, "fuse.sshfs", "rw", "user_id=1000"), why("without allow_other")},
	{"FUSE for all", refused(syscall.EACCES, "fuse.sshfs", "rw", "allow_other"), why("the daemon itself refuses")},
	{"FUSE without a name, for one user", refused(syscall.EPERM, "fuse"), why("without allow_other")},
	{"FUSE on a disk, for all", refused(syscall.EACCES, "fuseblk", "allow_other", "blksize=4096"), why("the daemon itself refuses")},
	{"ceph, a client that was evicted", refused(syscall.ESHUTDOWN, "ceph"), why("blocklisted")},
	{"no ceph", refused(syscall.ESHUTDOWN, "fuse.sshfs"), []string{"IOError target: ESHUTDOWN"}},
	{"an NFS export", refused(syscall.EACCES, "nfs4", "sec=sys", "vers=4.2"), why("does not admit this node")},
	{"NFS 3", refused(syscall.EPERM, "nfs"), why("does not admit this node")},
	{"NFS with Kerberos", refused(syscall.EACCES, "nfs4", "sec=krb5"), why("Kerberos")},
	{"NFS with Kerberos, private", refused(syscall.EKEYEXPIRED, "nfs", "vers=3", "sec=krb5p"), why("Kerberos")},
	{"an SMB share", refused(syscall.EACCES, "cifs"), why("on SMB")},
	{"SMB, by its other name", refused(syscall.ENOKEY, "smb3"), why("on SMB")},
	{"ext4", refused(syscall.EPERM, "ext4"), why("no usual cause is known for ext4")},
	{"a type that only starts alike", refused(syscall.EACCES, "fusectl"), why("no usual cause is known for fusectl")},
	{"a key revoked", refused(syscall.EKEYREVOKED, "ceph"), why("blocklisted")},
	{"a key rejected", refused(syscall.EKEYREJECTED, "cifs"), why("on SMB")},
	{"a write is refused", with(wrote("write", syscall.EACCES)), why("write: permission denied (EACCES); no usual cause is known for ext4")},
}
