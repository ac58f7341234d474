package integration

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/csi-addons/node-healer/internal/ops"
	"github.com/csi-addons/node-healer/test/harness"
)

// nfsShare is one export, of which each directory is a volume.
type nfsShare struct {
	*harness.NFSServer
	version string
	options []string
}

func newShare(n *harness.Node, version string, options ...string) nfsShare {
	n.T.Helper()
	s := nfsShare{n.NewNFSServer(), version, options}
	s.Export("share")
	return s
}

// nfsVolume is a directory of the share.
type nfsVolume struct {
	*harness.Volume
	on nfsShare
	// dir is what the server has.
	dir string
	sum string
}

// volume makes, stages, fills and publishes one.
func (s nfsShare) volume(n *harness.Node, id string) *nfsVolume {
	n.T.Helper()
	v := &nfsVolume{on: s, dir: filepath.Join(s.Root, "share", id)}
	harness.Mkdir(n.T, v.dir)
	v.fillDir(n.T, id)
	v.Volume = n.NewStagedVolume("nfs", id, func(staging string) { s.Mount(s.version, "share/"+id, staging, s.options...) })
	v.sum = v.Sum(v.MountPoint())
	return v
}

func (v *nfsVolume) fillDir(t testing.TB, id string) {
	t.Helper()
	harness.Mkdir(t, filepath.Join(v.dir, "sub"))
	for name, text := range map[string]string{"a": "first", "sub/b": "second"} {
		harness.Must(t, os.WriteFile(filepath.Join(v.dir, name), []byte(id+" "+text), 0o640))
	}
}

// renew deletes the directory on the server and makes it again, as from a backup.
// What a client has of it is stale from then on. The server for version 3 is stopped
// meanwhile: else it keeps for a while what it had open, and clients see a directory
// without links, to which the kernel allows no walk.
func (v *nfsVolume) renew(t *testing.T) {
	t.Helper()
	if v.on.version == "3" {
		v.on.Stop()
	}
	// A container may write while it is removed.
	harness.Eventually(t, "it is removed", func() bool { return os.RemoveAll(v.dir) == nil })
	harness.Mkdir(t, v.dir)
	v.fillDir(t, v.ID)
	if v.on.version == "3" {
		v.on.Start()
	}
	harness.Eventually(t, "it is stale", func() bool {
		return errors.Is(unix.Statfs(v.Staging, &unix.Statfs_t{}), unix.ESTALE)
	})
}

// restage does what a driver does that finds the staged mount stale.
func (v *nfsVolume) restage(t *testing.T) {
	t.Helper()
	harness.Must(t, unix.Unmount(v.Staging, unix.MNT_DETACH))
	v.on.Mount(v.on.version, "share/"+v.ID, v.Staging, v.on.options...)
}

// eachNFS runs a test with each way to mount.
func eachNFS(t *testing.T, test func(t *testing.T, version string, options ...string)) {
	t.Helper()
	for _, c := range []struct{ name, version, option string }{
		{"4.2", "4.2", "sharecache"},
		{"3", "3", "sharecache"},
		{"nosharecache", "4.2", "nosharecache"},
	} {
		t.Run(c.name, func(t *testing.T) { test(t, c.version, c.option) })
	}
}

// TestNFSStale has a directory deleted and made again on the server, and staged again. The mount point
// is replaced, although what is staged shares its superblock; nothing happens to
// another volume of the same export.
func TestNFSStale(t *testing.T) {
	eachNFS(t, func(t *testing.T, version string, options ...string) {
		n := harness.NewNode(t, "--standalone").Start()
		s := newShare(n, version, options...)
		v, other := s.volume(n, "one"), s.volume(n, "two")
		n.Expect("healthy", v.Request())
		n.Expect("healthy", other.Request())
		before, ids := n.Table(), idsAt(t, other.Staging, other.MountPoint())
		wasDev := harness.Layers(t, v.Staging)[0].Dev
		v.renew(t)
		stale := idsAt(t, v.Staging, v.MountPoint())
		n.Expect("abnormal", v.Request(), "StaleFileHandle", "ESTALE")
		if got := idsAt(t, v.Staging, v.MountPoint()); fmt.Sprint(got) != fmt.Sprint(stale) {
			t.Errorf("while nothing was staged again the mounts %v became %v", stale, got)
		}
		v.restage(t)
		nowDev := harness.Layers(t, v.Staging)[0].Dev
		if shared := version+options[0] != "4.2nosharecache"; shared != (wasDev == nowDev) {
			t.Errorf("the superblock was %s and is %s", wasDev, nowDev)
		}
		if !ops.CanMoveBeneath() {
			table := n.Table()
			n.Expect("abnormal", v.Request(), "StaleFileHandle", "ReplaceNotSupported")
			n.SameTable(table)
		} else {
			n.Expect("healed", v.Request(), "StaleFileHandle", "replace")
			after := make([]string, len(before))
			for i, line := range before {
				after[i] = line
				if strings.HasPrefix(line, v.Staging+" ") || strings.HasPrefix(line, v.MountPoint()+" ") {
					after[i] = strings.ReplaceAll(line, " "+wasDev.String()+" ", " "+nowDev.String()+" ")
				}
			}
			n.SameTable(after)
			if v.Sum(v.MountPoint()) != v.sum {
				t.Error("the data differs")
			}
			v.Writable(v.MountPoint())
			n.Expect("healthy", v.Request())
		}
		n.Expect("healthy", other.Request())
		if got := idsAt(t, other.Staging, other.MountPoint()); fmt.Sprint(got) != fmt.Sprint(ids) {
			t.Errorf("the other volume's mounts %v became %v", ids, got)
		}
	})
}

// TestNFSInContainer has a container use the volume meanwhile.
func TestNFSInContainer(t *testing.T) {
	eachNFS(t, func(t *testing.T, version string, options ...string) {
		n := harness.NewNode(t).Start()
		s := newShare(n, version, options...)
		v := s.volume(n, "one")
		var all []*harness.Container
		for _, how := range []string{"rprivate", "rslave"} {
			all = append(all, n.StartContainer(harness.ContainerSpec{
				Name: how, Mounts: []harness.ContainerMount{{At: "/data", Source: v.MountPoint(), Options: []string{how, "noexec"}}},
				Loop: &harness.Loop{Read: "/data/a", Write: "/data/loop"},
			}))
		}
		n.Expect("healthy", v.Request())
		var tables [][]string
		for _, c := range all {
			tables = append(tables, c.Table())
		}
		v.renew(t)
		v.restage(t)
		// The container that is found first is named, the other one counted.
		if !ops.CanMoveBeneath() {
			n.Expect("abnormal", v.Request(), "StaleFileHandle", "ReplaceNotSupported", "StaleInContainers", "1 more finding", " container c")
			return
		}
		n.Expect("abnormal", v.Request(), "StaleFileHandle", "StaleInContainers", "only FUSE is healed", "1 more finding", " container c")
		n.Expect("abnormal", v.Request(), "StaleInContainers", "only FUSE is healed")
		restartWith(n, "--heal-containers=all")
		n.Expect("healed", v.Request(), "replace-in-container")
		for i, c := range all {
			if got := c.AwaitTurns(); got.Reads != got.Turns || got.Writes != got.Turns || c.Starts() != 1 {
				t.Errorf("the loop in the container comes by this: %+v, and has met %q", got, c.Errors())
			}
			if options[0] != "nosharecache" {
				c.SameTable(tables[i])
			}
		}
		n.Expect("healthy", v.Request())
	})
}

// TestNFSServerStops stops the server: nothing is done, other volumes are served, and
// when it answers again all is as before.
func TestNFSServerStops(t *testing.T) {
	eachNFS(t, func(t *testing.T, version string, options ...string) {
		n := harness.NewNode(t, "--standalone", "--probe-timeout=3s", "--slow-answer=3s").Start()
		next := newNeighbour(n)
		s := newShare(n, version, options...)
		all := []*nfsVolume{s.volume(n, "one"), s.volume(n, "two")}
		for _, v := range all {
			n.Expect("healthy", v.Request())
		}
		before := n.Table()
		ids := idsAt(t, all[0].Staging, all[0].MountPoint(), all[1].Staging, all[1].MountPoint())
		s.Stop()
		for range 2 {
			for _, v := range all {
				n.Expect("abnormal", v.Request(), "NotResponding")
				next.untouched()
			}
		}
		harness.Eventually(t, "no second worker waits for the server", func() bool { return len(stuckWorkers(n)) <= 1 })
		n.SameTable(before)
		s.Start()
		for _, v := range all {
			harness.Eventually(t, "the volume is healthy", func() bool {
				a, err := n.Call(v.Request())
				return err == nil && !a.GetAbnormal()
			})
			if v.Sum(v.MountPoint()) != v.sum {
				t.Error("the data differs")
			}
		}
		if got := idsAt(t, all[0].Staging, all[0].MountPoint(), all[1].Staging, all[1].MountPoint()); fmt.Sprint(got) != fmt.Sprint(ids) {
			t.Errorf("the mounts %v became %v", ids, got)
		}
		n.SameTable(before)
	})
}

// TestNFSRebind loses a bind. That of a subdirectory is left as it is: the mount
// table shows the same root directory for both.
func TestNFSRebind(t *testing.T) {
	n := harness.NewNode(t, "--standalone").Start()
	s := newShare(n, "4.2")
	v, other := s.volume(n, "one"), s.volume(n, "two")
	n.Expect("healthy", v.Request())
	before := n.Table()
	v.Unpublish()
	n.Expect("healed", v.Request(), "NotMounted", "rebind")
	n.SameTable(before)
	if v.Sum(v.MountPoint()) != v.sum {
		t.Error("the data differs")
	}
	n.Expect("healthy", v.Request())
	other.Unpublish()
	harness.Must(t, unix.Mount(filepath.Join(other.Staging, "sub"), other.MountPoint(), "", unix.MS_BIND, ""))
	n.Expect("healthy", other.Request())
	other.Unpublish()
	before = n.Table()
	n.Expect("abnormal", other.Request(), "NotMounted", "not known to have shown the directory")
	n.SameTable(before)
}

// TestNFSDeletedInUse deletes a directory that the server keeps for a moment, so that
// the client learns that it has no links any more: the kernel then allows no walk to
// its mount, which is only reported.
func TestNFSDeletedInUse(t *testing.T) {
	n := harness.NewNode(t, "--standalone").Start()
	s := newShare(n, "4.2")
	v := s.volume(n, "one")
	n.Expect("healthy", v.Request())
	held, err := os.Open(v.dir)
	harness.Must(t, err)
	defer held.Close()
	harness.Must(t, os.RemoveAll(v.dir))
	var st unix.Statx_t
	harness.Must(t, unix.Statx(unix.AT_FDCWD, v.MountPoint(), unix.AT_STATX_FORCE_SYNC, unix.STATX_BASIC_STATS, &st))
	if st.Nlink != 0 {
		t.Fatalf("the deleted directory has %d links", st.Nlink)
	}
	harness.Must(t, held.Close())
	s.Stop() // it keeps what it had open
	s.Start()
	v.renew(t)
	v.restage(t)
	why := "no path walk reaches the mount any more"
	if !ops.CanMoveBeneath() {
		why = "ReplaceNotSupported"
	}
	before := n.Table()
	n.Expect("abnormal", v.Request(), "StaleFileHandle", why)
	n.SameTable(before)
}
