package integration

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/csi-addons/node-healer/test/harness"
)

// bindSubPath does what kubelet does for a container's volumeMount with a
// subPath: it binds a directory or file of the published volume.
func (s *served) bindSubPath(sub, index string) string {
	t := s.Node.T
	t.Helper()
	mountPoint := filepath.Join(s.Node.Kubelet, "pods", harness.PodUID, "volume-subpaths", s.PV, "app", index)
	info, err := os.Stat(filepath.Join(s.MountPoint(), sub))
	harness.Must(t, err)
	if info.IsDir() {
		harness.Mkdir(t, mountPoint)
	} else {
		harness.Mkdir(t, filepath.Dir(mountPoint))
		harness.Must(t, os.WriteFile(mountPoint, nil, 0o640))
	}
	harness.Must(t, unix.Mount(filepath.Join(s.MountPoint(), sub), mountPoint, "", unix.MS_BIND, ""))
	return mountPoint
}

// TestReplaceSubPaths heals a pod's subPath mounts along with its volume: a
// directory, one below it that is read-only, and a single file.
func TestReplaceSubPaths(t *testing.T) {
	n := harness.NewNode(t, "--standalone").Start()
	s := newServed(n, "with subPaths")
	dir, deep, file := s.bindSubPath("sub", "0"), s.bindSubPath("sub/deep", "1"), s.bindSubPath("sub/b", "2")
	harness.Must(t, unix.Mount("", deep, "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY, ""))
	n.NewContainer(harness.PodUID, s.MountPoint()) // the caller vouches only for the path it names
	s.known()
	sums := map[string]string{dir: s.Sum(dir), deep: s.Sum(deep), file: s.Sum(file)}
	for range 2 {
		s.die()
		n.Expect("healed", s.Request(), "Disconnected", "subpaths/")
		s.back()
		for mountPoint, sum := range sums {
			if s.Sum(mountPoint) != sum {
				t.Errorf("the data at %s differs", mountPoint)
			}
		}
		n.Expect("healthy", s.Request())
	}
	s.Writable(dir)
	if err := os.WriteFile(file, []byte(s.ID+" second"), 0o600); err != nil {
		t.Error(err)
	}
}

// TestReplaceSubPathKilled kills the worker or the server when the first mount point
// is healed and the next one is on its way: the next call does the rest.
func TestReplaceSubPathKilled(t *testing.T) {
	for _, victim := range []string{"worker", "server"} {
		for _, instant := range []string{"replace/beneath", "replace/detached", "finalize/set"} {
			t.Run(victim+" at "+instant, func(t *testing.T) {
				var file string
				h, s := stopReplace(t, instant, func(s *served) {
					file = s.bindSubPath("sub/b", "0")
					s.Node.NewContainer(harness.PodUID, s.MountPoint())
					s.known()
				})
				first := stopped(h.n)
				h.Resume()
				harness.Eventually(t, "the next worker stops", func() bool {
					next := stopped(h.n)
					return next != 0 && next != first
				})
				if victim == "worker" {
					harness.Must(t, unix.Kill(stopped(h.n), unix.SIGKILL))
					h.LetGo()
				} else {
					h.n.Kill()
					h.Answer()
					h.restart()
				}
				h.again()
				s.back()
				if raw, err := os.ReadFile(file); err != nil || string(raw) != s.ID+" second" {
					t.Errorf("the file has %q, %v", raw, err)
				}
			})
		}
	}
}

// TestReplaceLostSubPath leaves a subPath mount dead, and says so, whose
// directory is gone from the volume or is something else by now. The volume
// itself is healed all the same.
func TestReplaceLostSubPath(t *testing.T) {
	for name, spoil := range map[string]func(t *testing.T, disk string){
		"gone": func(*testing.T, string) {},
		"a link out of the volume": func(t *testing.T, disk string) {
			harness.Must(t, os.Symlink("/etc", filepath.Join(disk, "sub")))
		},
		"a link within the volume": func(t *testing.T, disk string) {
			harness.Must(t, os.Symlink("moved", filepath.Join(disk, "sub")))
		},
		"a file": func(t *testing.T, disk string) {
			harness.Must(t, os.WriteFile(filepath.Join(disk, "sub"), nil, 0o600))
		},
		"a link on the way": func(t *testing.T, disk string) {
			harness.Must(t, os.Rename(filepath.Join(disk, "moved", "deep"), filepath.Join(disk, "deeper")))
			harness.Must(t, os.Symlink("../deeper", filepath.Join(disk, "moved", "deep")))
			harness.Must(t, os.Rename(filepath.Join(disk, "moved"), filepath.Join(disk, "sub")))
		},
	} {
		t.Run(name, func(t *testing.T) {
			n := harness.NewNode(t, "--standalone").Start()
			s := newServed(n, "with a subPath")
			sub := s.bindSubPath("sub/deep", "0")
			n.NewContainer(harness.PodUID, s.MountPoint())
			s.known()
			s.disk.Kill()
			harness.Must(t, os.Rename(filepath.Join(s.disk.Backing, "sub"), filepath.Join(s.disk.Backing, "moved")))
			spoil(t, s.disk.Backing)
			s.disk.Restage()
			before := harness.Layers(t, sub)
			for range 2 {
				n.Expect("abnormal", s.Request(), "Disconnected", "subpaths/")
				if got := harness.Layers(t, sub); len(got) != 1 || got[0].OldID != before[0].OldID {
					t.Errorf("at the subPath there is %v", got)
				}
				if top := harness.Layers(t, s.MountPoint()); len(top) != 1 || top[0].Dev != s.disk.Dev() {
					t.Errorf("at the mount point there is %v", top)
				}
			}
		})
	}
}
