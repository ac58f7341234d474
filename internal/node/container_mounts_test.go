package node

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/csi-addons/node-healer/internal/mount"
	"github.com/csi-addons/node-healer/internal/ops"
	"github.com/csi-addons/node-healer/pkg/facts"
	"github.com/csi-addons/node-healer/pkg/facts/layout"
)

const podUID = "0d6a1c2e-1111-4222-8333-9444aaaa5555"

// ofVolume wants the mounts of one superblock.
var ofVolume = facts.Filter{Superblocks: []facts.Dev{{Major: 0, Minor: 50}}}

// entries are what a worker gives of a mount table.
func entries(t *testing.T, text string) (of ops.MountsOf) {
	t.Helper()
	err := mount.Visit(strings.NewReader(text), func(m facts.Mount) error {
		m.ID = uint64(1000 + m.OldID)
		of.Mounts = append(of.Mounts, m)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return of
}

func TestMountsInAContainer(t *testing.T) {
	const root = "1 0 0:20 / / rw - overlay overlay rw\n"
	n := &Node{kubelet: layout.Kubelet{Root: "/k"}}
	for name, tc := range map[string]struct {
		table string
		want  []string // path and what it hides
	}{
		"one":                  {root + "2 1 0:50 / /data rw - fuse.x src rw\n", []string{"/data []"}},
		"several":              {root + "2 1 0:50 / /data rw - fuse.x src rw\n4 1 0:50 / /more rw - fuse.x src rw\n", []string{"/data []", "/more []"}},
		"hidden by another":    {root + "2 1 0:50 / /data rw - fuse.x src rw\n3 2 0:51 / /data rw - tmpfs x rw\n", nil},
		"over another":         {root + "3 1 0:51 / /data rw - tmpfs x rw\n2 3 0:50 / /data rw - fuse.x src rw\n", []string{"/data [3]"}},
		"a copy of the host's": {root + "4 1 0:50 / /k/pods/u/volumes/kubernetes.io~csi/p/mount rw - fuse.x src rw\n", nil},
		"another one":          {root + "2 1 0:51 / /data rw - fuse.x src rw\n", nil},
		"none":                 {"", nil},
	} {
		found := n.mountsIn(facts.Container{}, entries(t, tc.table), ofVolume)
		var got []string
		for _, m := range found {
			below := []int{}
			for _, b := range m.Below {
				below = append(below, b.OldID)
			}
			got = append(got, fmt.Sprint(m.Mount.Path, " ", below))
		}
		if !slices.Equal(got, tc.want) {
			t.Errorf("%s: %q, want %q", name, got, tc.want)
		}
	}
}

func TestWhatIsKnownOfAContainersMount(t *testing.T) {
	n := &Node{kubelet: layout.Kubelet{Root: "/k"}}
	c := facts.Container{Workload: facts.Workload{PodUID: podUID, ContainerID: strings.Repeat("c", 64), Dir: "kubepods/x"}, PID: 10, Namespace: 4711}
	found := n.mountsIn(c, entries(t, "1 0 0:20 / / rw - overlay overlay rw\n2 1 0:50 /sub /data ro,nosuid master:7 - fuse.x src rw\n"), ofVolume)
	if len(found) != 1 {
		t.Fatalf("%+v", found)
	}
	m := found[0]
	want := facts.Mount{
		ID:          1002,
		OldID:       2,
		OldParent:   1,
		Dev:         facts.Dev{Major: 0, Minor: 50},
		Root:        "/sub",
		Path:        "/data",
		Attr:        facts.AttrReadOnly | facts.AttrNoSUID | facts.AttrStrictAtime,
		Propagation: facts.Propagation{Master: 7},
		FSType:      "fuse.x",
		Source:      "src",
	}
	m.Mount.SuperOptions = nil
	if m.Container != c || fmt.Sprint(m.Mount) != fmt.Sprint(want) {
		t.Errorf("%+v: %+v\nwant %+v", m.Container, m.Mount, want)
	}
	for _, tc := range []struct{ got, want string }{
		{m.Path(), "/proc/10/root/data"},
		{facts.ContainerMount{Container: facts.Container{PID: 7}, Mount: facts.Mount{Path: "/"}}.Path(), "/proc/7/root"},
	} {
		if tc.got != tc.want {
			t.Errorf("got %s, want %s", tc.got, tc.want)
		}
	}
}

func TestWantedMounts(t *testing.T) {
	fuse := facts.Filter{Superblocks: []facts.Dev{{Major: 0, Minor: 50}}, Current: facts.Dev{Major: 0, Minor: 60}, FSType: "fuse.x", Source: "src"}
	for name, tc := range map[string]struct {
		m    facts.Mount
		want bool
	}{
		"the superblock":              {facts.Mount{Dev: facts.Dev{Major: 0, Minor: 50}}, true},
		"the current one":             {facts.Mount{Dev: facts.Dev{Major: 0, Minor: 60}, FSType: "fuse.x", Source: "src"}, false},
		"of the current one, ours":    {facts.Mount{Dev: facts.Dev{Major: 0, Minor: 60}, Attr: facts.AttrReadOnly | facts.AttrNoSymFollow}, true},
		"another of type and source":  {facts.Mount{Dev: facts.Dev{Major: 0, Minor: 70}, FSType: "fuse.x", Source: "src"}, true},
		"another of type, not source": {facts.Mount{Dev: facts.Dev{Major: 0, Minor: 70}, FSType: "fuse.x", Source: "y"}, false},
		"another of source, not type": {facts.Mount{Dev: facts.Dev{Major: 0, Minor: 70}, FSType: "fuse.y", Source: "src"}, false},
		"read-only and nosymfollow":   {facts.Mount{Dev: facts.Dev{Major: 0, Minor: 70}, Attr: facts.AttrReadOnly | facts.AttrNoSymFollow}, false},
	} {
		if fuse.Wants(tc.m) != tc.want {
			t.Errorf("%s: %v", name, !tc.want)
		}
	}
	if (facts.Filter{}).Wants(facts.Mount{Dev: facts.Dev{Major: 0, Minor: 9}}) {
		t.Error("what nobody asked for")
	}
}

func TestGuarded(t *testing.T) {
	for attr, want := range map[facts.Attr]bool{
		facts.AttrReadOnly | facts.AttrNoSymFollow: true, facts.AttrReadOnly | facts.AttrNoSymFollow | facts.AttrNoExec: true, facts.AttrReadOnly: false, facts.AttrNoSymFollow: false, 0: false,
	} {
		if (facts.Mount{Attr: attr}).Guarded() != want {
			t.Errorf("%s: %v", attr, !want)
		}
	}
}

// containerOf names a process as the walk over all processes does.
func containerOf(t *testing.T, pid int) facts.Container {
	t.Helper()
	cgroup, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
	if err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(fmt.Sprintf("/proc/%d/ns/mnt", pid))
	if err != nil {
		t.Fatal(err)
	}
	return facts.Container{Workload: ops.WorkloadIn(string(cgroup)), PID: pid, Namespace: info.Sys().(*syscall.Stat_t).Ino}
}

// devAt returns the superblock that a process has mounted at a path.
func devAt(t *testing.T, pid int, path string) facts.Dev {
	t.Helper()
	info, err := os.Stat(fmt.Sprintf("/proc/%d/root%s", pid, path))
	if err != nil {
		t.Fatal(err)
	}
	dev := info.Sys().(*syscall.Stat_t).Dev
	return facts.Dev{Major: unix.Major(dev), Minor: unix.Minor(dev)}
}

// On this kernel: a process in a mount namespace of its own has a tmpfs.
func TestProbeInContainer(t *testing.T) {
	realKernel(t)
	n, _ := newNode(t)
	at := t.TempDir()
	pid, end := propagatedMounts(t, `mount -t tmpfs x "$1"; mount -t tmpfs y "$1"`, []string{at})
	c := containerOf(t, pid)
	var found Containers
	wanted := facts.Filter{Superblocks: []facts.Dev{devAt(t, pid, at)}}
	ended, err := n.addMounts(t.Context(), []facts.Container{c}, wanted, &found)
	if err != nil || ended || len(found.Mounts) != 1 || found.Mounts[0].PID != pid || len(found.Mounts[0].Below) != 1 || found.Mounts[0].Mount.Source != "y" {
		t.Fatalf("%+v, %v", found, err)
	}
	look := func(m facts.ContainerMount) facts.ContainerProbe {
		t.Helper()
		sights, err := n.ProbeInContainers(context.Background(), []facts.ContainerMount{m})
		if err != nil || len(sights) != 1 {
			t.Fatalf("%+v, %v", sights, err)
		}
		return sights[0]
	}
	m := found.Mounts[0]
	if s := look(m); s != (facts.ContainerProbe{}) {
		t.Errorf("it works: %+v", s)
	}
	covered := m
	covered.Mount = m.Below[0]
	if s := look(covered); s.Err == "" || s.Ended {
		t.Errorf("a mount that is covered: %+v", s)
	}
	reused := m
	reused.Namespace++
	if s := look(reused); !s.Ended {
		t.Errorf("another process by now: %+v", s)
	}
	end()
	if s := look(m); !s.Ended {
		t.Errorf("it has ended: %+v", s)
	}
	if errs := n.ReplaceInContainers(context.Background(), []facts.ContainerSwap{{Container: m, Source: m.Mount}}); len(errs) != 1 || errs[0] == nil || !strings.Contains(errs[0].Error(), "has ended") {
		t.Errorf("replace where it has ended: %v", errs)
	}
	if ended, err := n.addMounts(t.Context(), []facts.Container{c}, wanted, &found); err != nil || !ended || len(found.Mounts) != 1 || len(found.Unverified) != 0 {
		t.Errorf("mounts where it has ended: %+v, %t, %v", found, ended, err)
	}
}

// A process that ends between the walk and the reading of its mounts is no proof that its container has
// ended: the next walk finds another of its processes.
func TestProcessEndsBeforeItsMountsAreRead(t *testing.T) {
	realKernel(t)
	n, _ := newNode(t)
	at := t.TempDir()
	gone, end := propagatedMounts(t, `mount -t tmpfs x "$1"`, []string{at})
	ended := containerOf(t, gone)
	end()
	pid, _ := propagatedMounts(t, `mount -t tmpfs y "$1"`, []string{at})
	wanted := facts.Filter{Superblocks: []facts.Dev{devAt(t, pid, at)}}
	for name, tc := range map[string]struct {
		found      facts.Container // by the second walk
		walks      int
		mounts     int
		unverified []facts.Unverified
	}{
		"another process":  {found: containerOf(t, pid), walks: 2, mounts: 1},
		"they keep ending": {found: ended, walks: maxWalks, unverified: []facts.Unverified{{Why: facts.WhyScanCut}}},
	} {
		walks := 0
		n.walks.walk = func(context.Context, storage) (a ops.ProcessesAnswer, err error) {
			a.Containers = []facts.Container{ended}
			if walks++; walks > 1 {
				a.Containers[0] = tc.found
			}
			return a, nil
		}
		found, err := n.InContainers(t.Context(), nil, wanted, false)
		if err != nil || walks != tc.walks || len(found.Mounts) != tc.mounts || !slices.Equal(found.Unverified, tc.unverified) {
			t.Errorf("%s, after %d walks: %+v, %v", name, walks, found, err)
		}
	}
}

// A container in a container copies what that one has, and not what the host has by then.
func TestContainerInAContainerAfterAWalk(t *testing.T) {
	realKernel(t)
	n, _ := newNode(t)
	keepsTopology(t, n.Namespace)
	at := t.TempDir()
	pid, _ := propagatedMounts(t, `mount -t tmpfs x "$1"`, []string{at})
	wanted := facts.Filter{Superblocks: []facts.Dev{devAt(t, pid, at)}}
	outer := containerOf(t, pid)
	running := []facts.Container{outer}
	n.walks.walk = func(context.Context, storage) (ops.ProcessesAnswer, error) {
		return ops.ProcessesAnswer{Containers: running}, nil
	}
	for want := 1; want <= 2; want++ {
		found, err := n.InContainers(t.Context(), nil, wanted, true)
		if err != nil || len(found.Mounts) != want {
			t.Errorf("%d containers: %+v, %v", want, found, err)
		}
		running = []facts.Container{outer, outer} // two with the same mounts
	}
}

// One pod's mounts do not use up what is looked at for others.
func TestMoreMountsThanAreInspected(t *testing.T) {
	realKernel(t)
	n, _ := newNode(t)
	at := t.TempDir()
	script := `mount -t tmpfs x "$1"; i=0; while [ $i -lt "$2" ]; do mkdir "$1/$i"; mount --bind "$1" "$1/$i"; i=$((i+1)); done`
	few, _ := propagatedMounts(t, script, []string{at, fmt.Sprint(maxInNamespace - 1)})
	many, _ := propagatedMounts(t, script, []string{at, fmt.Sprint(maxInNamespace)})
	var all []facts.Container
	in := func(pid int, pod string) facts.Container {
		c := containerOf(t, pid)
		c.PodUID = pod
		return c
	}
	q := facts.Filter{Superblocks: []facts.Dev{devAt(t, few, at), devAt(t, many, at)}}
	for range maxInPod/maxInNamespace + 1 {
		all = append(all, in(few, ""))
	}
	all = append(all, in(many, ""))
	var found Containers
	_, err := n.addMounts(t.Context(), all, q, &found)
	if err != nil || len(found.Mounts) != maxInPod || len(found.Unverified) != 2 {
		t.Fatalf("%d mounts, %+v, %v", len(found.Mounts), found.Unverified, err)
	}
	for _, u := range found.Unverified {
		if u.Why != facts.WhyTooMany {
			t.Errorf("%+v", u)
		}
	}
}
