package mount

import "testing"

func TestIsType(t *testing.T) {
	for fsType, want := range map[string]bool{"fuse": true, "fuse.x": true, "nfs4": true, "autofs": true, "ext4": false, "overlay": false, "tmpfs": false, "nfsd": false, "fuse.": false, "": false} {
		if IsType(fsType, MayHang) != want {
			t.Errorf("%s: %v", fsType, !want)
		}
	}
}

// A magic link that ends on NFS or 9p is revalidated there, and smb3 and afs do not keep
// to AT_STATX_DONT_SYNC.
func TestFromMemory(t *testing.T) {
	for fsType, want := range map[string]bool{"fuse": true, "ceph": true, "proc": true, "xfs": true, "nfs": false, "9p": false, "cifs": false, "afs": false, "unheard-of": false} {
		if IsType(fsType, FromMemory) != want {
			t.Errorf("%s: %v", fsType, !want)
		}
	}
}
