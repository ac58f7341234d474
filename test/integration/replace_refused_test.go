package integration

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/csi-addons/node-healer/test/harness"
)

// TestReplaceRefused leaves a dead mount in place, and says why, until a right
// replacement is proven.
func TestReplaceRefused(t *testing.T) {
	for name, c := range map[string]struct {
		spoil func(t *testing.T, s *served)
		says  []string
	}{
		"what is staged is dead too": {
			func(_ *testing.T, s *served) { s.disk.Kill() },
			[]string{"Disconnected"},
		},
		"what is staged died again": {
			func(_ *testing.T, s *served) { s.die(); s.disk.Kill() },
			[]string{"Disconnected", "not healthy (Disconnected)"},
		},
		"what is staged gives no answer": {
			func(_ *testing.T, s *served) { s.die(); s.disk.Freeze() },
			[]string{"NotResponding"},
		},
		"nothing is staged": {
			func(_ *testing.T, s *served) { s.disk.Kill(); s.disk.Unstage() },
			[]string{"StagingNotMounted"},
		},
		"two mounts are staged": {
			func(t *testing.T, s *served) {
				s.die()
				harness.Must(t, unix.Mount(s.Staging, s.Staging, "", unix.MS_BIND, ""))
			},
			[]string{"Disconnected", "several mounts are stacked on the staging path"},
		},
		"kubelet's file names another volume": {
			func(t *testing.T, s *served) {
				s.die()
				harness.Must(t, os.WriteFile(filepath.Join(filepath.Dir(s.Staging), "vol_data.json"),
					[]byte(`{"driverName":"`+harness.Driver+`","volumeHandle":"another"}`), 0o600))
			},
			[]string{"WrongVolumeMounted", "vol_data.json"},
		},
		"kubelet's file is gone": {
			func(t *testing.T, s *served) {
				s.die()
				harness.Must(t, os.Remove(filepath.Join(filepath.Dir(s.Staging), "vol_data.json")))
			},
			[]string{"Disconnected", "identity not proven"},
		},
		"another source is staged": {
			func(_ *testing.T, s *served) { s.disk.Rename("diskfs:another"); s.die() },
			[]string{"Disconnected", "source"},
		},
		"another type is staged": {
			func(t *testing.T, s *served) {
				s.disk.Kill()
				s.disk.Unstage()
				harness.Must(t, unix.Mount(s.disk.Source(), s.Staging, "tmpfs", 0, "size=1m"))
			},
			[]string{"Disconnected", "WrongVolumeMounted"},
		},
		"something stands in the dead mount": {
			func(t *testing.T, s *served) {
				harness.Must(t, unix.Mount("", s.MountPoint(), "", unix.MS_PRIVATE, ""))
				harness.Must(t, unix.Mount("unrelated", filepath.Join(s.MountPoint(), "sub"), "tmpfs", 0, "size=1m"))
				s.die()
			},
			[]string{"Disconnected", "mounted on"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			n := harness.NewNode(t, "--standalone", "--probe-timeout=1s").Start()
			next := newNeighbour(n)
			s := newServed(n, "refused").known()
			c.spoil(t, s)
			before, ids := n.Table(), idsAt(t, s.Staging, s.MountPoint())
			for range 2 {
				n.Expect("abnormal", s.Request(), c.says...)
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
