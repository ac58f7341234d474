package netfs

import "testing"

func TestServer(t *testing.T) {
	for _, tc := range [][3]string{
		{"nfs", "10.0.0.1:/export/a", "10.0.0.1"},
		{"nfs4", "[fd00::1]:/export", "[fd00::1]"},
		{"nfs4", "srv:/", "srv"},
		{"nfs4", "odd", ""},
		{"cifs", "//srv.example.com/share/dir", "srv.example.com"},
		{"smb3", "//srv", "srv"},
		{"ceph", "mon1:6789,mon2:6789:/volumes/a:/b", "mon1:6789,mon2:6789"},
		{"ceph", "admin@b3acfc0d-575f.cephfs=/volumes/a", "b3acfc0d-575f.cephfs"},
		{"ceph", "", ""},
		{"ext4", "srv:/a", ""},
		{"fuse.sshfs", "srv:/a", ""},
	} {
		if got := Server(tc[0], tc[1]); got != tc[2] {
			t.Errorf("%s %s: got %q, want %q", tc[0], tc[1], got, tc[2])
		}
	}
}
