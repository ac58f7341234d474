package integration

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/csi-addons/node-healer/test/harness"
)

// replaceRefused are the scenes in which a dead mount must stay: whatever might replace it
// is not proven to be the volume, or something stands in the dead mount.
var replaceRefused = map[string]struct {
	spoil func(t *testing.T, s *served)
	says  []string
}{
	"what is staged is dead too": {
		spoil: func(_ *testing.T, s *served) { s.disk.Kill() },
		says:  []string{"Disconnected"},
	},
	"what is staged died again": {
		spoil: func(_ *testing.T, s *served) { s.die(); s.disk.Kill() },
		says:  []string{"Disconnected", "not healthy (Disconnected)"},
	},
	"what is staged gives no answer": {
		spoil: func(_ *testing.T, s *served) { s.die(); s.disk.Freeze() },
		says:  []string{"NotResponding"},
	},
	"nothing is staged": {
		spoil: func(_ *testing.T, s *served) { s.disk.Kill(); s.disk.Unstage() },
		says:  []string{"StagingNotMounted"},
	},
	"two mounts are staged": {
		spoil: func(t *testing.T, s *served) {
			s.die()
			harness.Must(t, unix.Mount(s.Staging, s.Staging, "", unix.MS_BIND, ""))
		},
		says: []string{"Disconnected", "several mounts are stacked on the staging path"},
	},
	"kubelet's file names another volume": {
		spoil: func(t *testing.T, s *served) {
			s.die()
			harness.Must(t, os.WriteFile(filepath.Join(filepath.Dir(s.Staging), "vol_data.json"),
				[]byte(`{"driverName":"`+harness.Driver+`","volumeHandle":"another"}`), 0o600))
		},
		says: []string{"WrongVolumeMounted", "vol_data.json"},
	},
	"kubelet's file is gone": {
		spoil: func(t *testing.T, s *served) {
			s.die()
			harness.Must(t, os.Remove(filepath.Join(filepath.Dir(s.Staging), "vol_data.json")))
		},
		says: []string{"Disconnected", "identity not proven"},
	},
	"another source is staged": {
		spoil: func(_ *testing.T, s *served) { s.disk.Rename("diskfs:another"); s.die() },
		says:  []string{"Disconnected", "source"},
	},
	"another type is staged": {
		spoil: func(t *testing.T, s *served) {
			s.disk.Kill()
			s.disk.Unstage()
			harness.Must(t, unix.Mount(s.disk.Source(), s.Staging, "tmpfs", 0, "size=1m"))
		},
		says: []string{"Disconnected", "WrongVolumeMounted"},
	},
	"something stands in the dead mount": {
		spoil: func(t *testing.T, s *served) {
			harness.Must(t, unix.Mount("", s.MountPoint(), "", unix.MS_PRIVATE, ""))
			harness.Must(t, unix.Mount("unrelated", filepath.Join(s.MountPoint(), "sub"), "tmpfs", 0, "size=1m"))
			s.die()
		},
		says: []string{"Disconnected", "mounted on"},
	},
}

// TestReplaceRefused leaves a dead mount in place, and says why, until a right
// replacement is proven.
func TestReplaceRefused(t *testing.T) {
	for name, tc := range replaceRefused {
		t.Run(name, func(t *testing.T) {
			n := harness.NewNode(t, "--standalone", "--probe-timeout=3s").Start()
			next := newNeighbour(n)
			s := newServed(n, "refused").known()
			tc.spoil(t, s)
			before, ids := n.Table(), idsAt(t, s.Staging, s.MountPoint())
			for range 2 {
				n.Expect("abnormal", s.Request(), tc.says...)
			}
			n.SameTable(before)
			if got := idsAt(t, s.Staging, s.MountPoint()); !slices.Equal(got, ids) {
				t.Errorf("the mounts %v became %v", ids, got)
			}
			next.untouched()
		})
	}
}

// TestReplaceOfANamelessSource relies only on kubelet's file at kubelet's own path
// when a daemon gives all its mounts the same source.
func TestReplaceOfANamelessSource(t *testing.T) {
	n := harness.NewNode(t, "--standalone").Start()
	v, d := n.NewFUSEDisk("nameless", harness.FUSEConfig{Source: "fuse.diskfs"})
	s := (&served{Volume: v, disk: d}).known()
	s.die()
	n.Expect("healed", s.Request())
	s.back()

	s.die()
	harness.Must(t, os.Remove(filepath.Join(filepath.Dir(s.Staging), "vol_data.json")))
	before := n.Table()
	n.Expect("abnormal", s.Request(), "Disconnected", "identity not proven")
	n.SameTable(before)
}

// TestReplaceNeverSeenHealthy does nothing for a volume without a record.
func TestReplaceNeverSeenHealthy(t *testing.T) {
	n := harness.NewNode(t, "--standalone").Start()
	s := newServed(n, "unrelated")
	s.die()
	before := n.Table()
	n.Expect("abnormal", s.Request(), "Disconnected", "never seen healthy")
	n.SameTable(before)
}

// TestReplaceModeCheck changes nothing.
func TestReplaceModeCheck(t *testing.T) {
	n := harness.NewNode(t, "--standalone").Start()
	s := newServed(n, "checked").known()
	n.Stop()
	n.Args = append(n.Args, "--mode=check")
	n.Start()
	s.die()
	before := n.Table()
	n.Expect("abnormal", s.Request(), "Disconnected", "--mode=check")
	n.SameTable(before)
}
