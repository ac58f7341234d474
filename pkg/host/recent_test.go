package host

import (
	"syscall"
	"testing"
	"time"
)

func TestRecentLooks(t *testing.T) {
	memory := Mount{ID: 7, FSType: "tmpfs", Path: "/m"}
	disk := Mount{ID: 8, FSType: "ext4", Path: "/m"}
	good := Sight{Kind: KindDirectory, UUID: "u", Answer: Answer{Asked: true}}
	opened := good
	opened.Opened.Open = true
	mounted := []Ask{{Path: "/m", Mounted: true}}
	for name, tc := range map[string]struct {
		of    Mount
		paths []Ask
		sight Sight
		kept  bool
	}{
		"memory":              {of: memory, paths: mounted, sight: good, kept: true},
		"memory, two places":  {of: memory, paths: []Ask{{Path: "/m", Mounted: true}, {Path: "/n", Mounted: true}}, sight: good, kept: true},
		"a disk":              {of: disk, paths: mounted, sight: opened, kept: true},
		"a disk, not opened":  {of: disk, paths: mounted, sight: good},
		"a path":              {of: memory, paths: []Ask{{Path: "/m"}}, sight: good},
		"a path as well":      {of: memory, paths: []Ask{{Path: "/m", Mounted: true}, {Path: "/n"}}, sight: good},
		"xfs":                 {of: Mount{ID: 9, FSType: "xfs"}, paths: mounted, sight: opened},
		"btrfs":               {of: Mount{ID: 9, FSType: "btrfs"}, paths: mounted, sight: opened},
		"NFS":                 {of: Mount{ID: 9, FSType: "nfs4"}, paths: mounted, sight: good},
		"FUSE":                {of: Mount{ID: 9, FSType: "fuse.x"}, paths: mounted, sight: good},
		"a device node":       {of: Mount{ID: 9, FSType: "devtmpfs", Root: "/sdb"}, paths: mounted, sight: Sight{Kind: KindBlock, Opened: opened.Opened}},
		"a file":              {of: memory, paths: mounted, sight: Sight{Kind: KindFile, Answer: good.Answer}},
		"no unique mount ids": {of: Mount{FSType: "tmpfs"}, paths: mounted, sight: good},
		"an errno":            {of: disk, paths: mounted, sight: Sight{Kind: KindDirectory, Opened: opened.Opened, Answer: Answer{Asked: true, Errno: syscall.EIO}}},
	} {
		var r recentLooks
		q := Question{Probe: &tc.of, Paths: tc.paths}
		r.note(q, tc.sight, time.Now())
		if s, recent := r.like(q); recent != tc.kept || recent && s.UUID != "u" {
			t.Errorf("%s: %v, %+v", name, recent, s)
		}
		other := tc.of
		other.ID = 99
		if _, recent := r.like(Question{Probe: &other, Paths: tc.paths}); recent {
			t.Errorf("%s: taken for that of another mount", name)
		}
		if _, recent := r.like(Question{Probe: &tc.of, Paths: append([]Ask{{Path: "/x", Mounted: true}}, tc.paths...)}); recent {
			t.Errorf("%s: taken for one at other places", name)
		}
		r.note(q, tc.sight, time.Now().Add(-recently))
		if _, recent := r.like(q); recent {
			t.Errorf("%s: good for ever", name)
		}
	}
}

// Files of kubelet's and space are read again after a moment, however often
// somebody asks.
func TestRecentLookIsNotRenewedByItself(t *testing.T) {
	realKernel(t)
	n, root := newNode(t)
	put(t, root+"/m")
	t.Cleanup(func() { done(t, syscall.Unmount(root+"/m", 0)) })
	m := topAt(t, n, root+"/m")
	first := seen(t, n, m)
	done(t, syscall.Unmount(root+"/m", 0)) // so that nobody can look any more
	eventually(t, "somebody looks", func() bool {
		s := seen(t, n, m)
		return s.Changed
	})
	put(t, root+"/m")
	if first.Changed || first.Space.Blocks == 0 {
		t.Errorf("%+v", first)
	}
}
