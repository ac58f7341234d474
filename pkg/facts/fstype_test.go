package facts

import "testing"

func TestIsType(t *testing.T) {
	for fsType, want := range map[string]bool{"fuse": true, "fuse.x": true, "nfs4": true, "autofs": true, "lustre": true, "gfs2": true, "ocfs2": true, "ext4": false, "overlay": false, "tmpfs": false, "nfsd": false, "fuse.": false, "": false} {
		if IsType(fsType, MayHang) != want {
			t.Errorf("%s: %v", fsType, !want)
		}
	}
}
