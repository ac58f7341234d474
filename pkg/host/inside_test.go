package host

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/csi-addons/node-healer/pkg/touch"
)

const otherUID = "11111111-2222-4333-8444-555566667777"

// volumeIn is a mount table with a volume at /data.
const volumeIn = "1 0 0:20 / / rw - overlay overlay rw\n2 1 0:50 /sub /data ro,nosuid master:7 - fuse.x src rw\n"

// process gives the files of a process in a mount namespace, and in a pod if any.
func process(pid int, namespace, podUID, mountinfo string) map[string]string {
	cgroup := "0::/system.slice/x.service\n"
	if podUID != "" {
		cgroup = "0::/kubepods/pod" + podUID + "/" + strings.Repeat("c", 64) + "\n"
	}
	return map[string]string{
		fmt.Sprintf("%d/cgroup", pid):    cgroup,
		fmt.Sprintf("%d/mountinfo", pid): mountinfo,
		fmt.Sprintf("%d/comm", pid):      "sh\n",
		fmt.Sprintf("%d/ns/mnt", pid):    "-> ../../ns/" + namespace,
	}
}

// containersNode is a host whose processes are a recorded tree.
func containersNode(t *testing.T, processes ...map[string]string) *Node {
	t.Helper()
	all := map[string]string{"ns/host": "h", "ns/a": "a", "ns/b": "b", "ns/c": "c", "uptime": "1 1\n"}
	for _, p := range processes {
		maps.Copy(all, p)
	}
	return &Node{
		cfg:     Config{Procfs: Procfs(tree(t, all)), Namespace: &Namespace{}},
		kubelet: Kubelet{Root: "/k"}, hostNamespace: "../../ns/host",
	}
}

func isVolume(m Mount) bool { return m.Dev == Dev{0, 50} }

func TestInContainers(t *testing.T) {
	mine := []string{podUID}
	for name, tc := range map[string]struct {
		processes []map[string]string
		pods      []string
		want      []string // pid, path and what it hides
		unseen    int
		crowded   int
	}{
		"one":                      {processes: []map[string]string{process(10, "a", podUID, volumeIn)}, pods: mine, want: []string{"10 /data []"}},
		"two processes of one":     {processes: []map[string]string{process(10, "a", podUID, volumeIn), process(11, "a", podUID, volumeIn)}, pods: mine, want: []string{"10 /data []"}},
		"two containers":           {processes: []map[string]string{process(10, "a", podUID, volumeIn), process(11, "b", podUID, volumeIn)}, pods: mine, want: []string{"10 /data []", "11 /data []"}},
		"another pod's":            {processes: []map[string]string{process(10, "a", otherUID, volumeIn)}, pods: mine},
		"of no pod":                {processes: []map[string]string{process(10, "a", "", volumeIn)}, pods: mine},
		"anybody's":                {processes: []map[string]string{process(10, "a", "", volumeIn), process(11, "b", otherUID, volumeIn)}, want: []string{"10 /data []", "11 /data []"}},
		"anybody's, of no pods":    {processes: []map[string]string{process(10, "a", "", volumeIn)}, pods: []string{}},
		"the host itself":          {processes: []map[string]string{process(10, "host", podUID, volumeIn)}},
		"has ended":                {processes: []map[string]string{{"10/cgroup": "0::/kubepods/pod" + podUID + "/c\n"}}, pods: mine},
		"ends meanwhile":           {processes: []map[string]string{process(10, "gone", podUID, volumeIn)}, pods: mine},
		"another in its namespace": {processes: []map[string]string{process(10, "a", otherUID, volumeIn), process(11, "a", podUID, volumeIn)}, pods: mine},
		"nothing that matches":     {processes: []map[string]string{process(10, "a", podUID, "1 0 0:20 / / rw - overlay overlay rw\n")}, pods: mine},
		"a table that is no table": {processes: []map[string]string{process(10, "a", podUID, "1 0 x\n"), process(11, "b", podUID, volumeIn)}, pods: mine, want: []string{"11 /data []"}, unseen: 1},
		"hidden by another":        {processes: []map[string]string{process(10, "a", podUID, volumeIn+"3 2 0:51 / /data rw - tmpfs x rw\n")}, pods: mine},
		"over another":             {processes: []map[string]string{process(10, "a", podUID, "1 0 0:20 / / rw - overlay overlay rw\n3 1 0:51 / /data rw - tmpfs x rw\n2 3 0:50 / /data rw - fuse.x src rw\n")}, pods: mine, want: []string{"10 /data [3]"}},
		"a copy of the host's":     {processes: []map[string]string{process(10, "a", podUID, volumeIn+"4 1 0:50 / /k/pods/u/volumes/kubernetes.io~csi/p/mount rw - fuse.x src rw\n")}, pods: mine, want: []string{"10 /data []"}},
		"several in one":           {processes: []map[string]string{process(10, "a", podUID, volumeIn+"4 1 0:50 / /more rw - fuse.x src rw\n")}, pods: mine, want: []string{"10 /data []", "10 /more []"}},
		"as many as are looked at": {processes: []map[string]string{process(10, "a", podUID, manyMounts(maxInNamespace))}, pods: mine, want: slices.Repeat([]string{"*"}, maxInNamespace)},
		"more than are looked at":  {processes: []map[string]string{process(10, "a", podUID, manyMounts(maxInNamespace+1)), process(11, "b", podUID, volumeIn)}, pods: mine, want: []string{"11 /data []"}, crowded: 1},
		"nobody":                   {pods: mine},
	} {
		t.Run(name, func(t *testing.T) {
			found, err := containersNode(t, tc.processes...).InContainers(tc.pods, isVolume)
			if err != nil || found.Unseen != tc.unseen || found.Crowded != tc.crowded {
				t.Errorf("%d unseen, %d crowded, %v", found.Unseen, found.Crowded, err)
			}
			var got []string
			for _, m := range found.Mounts {
				got = append(got, fmt.Sprint(m.PID, " ", m.Mount.Path, " ", ids(m.Below)))
				if len(tc.want) > 0 && tc.want[0] == "*" {
					got[len(got)-1] = "*"
				}
			}
			slices.Sort(got)
			if !slices.Equal(got, tc.want) {
				t.Errorf("%q, want %q", got, tc.want)
			}
		})
	}
	n := containersNode(t)
	n.cfg.Procfs = "/nonexistent"
	if _, err := n.InContainers(nil, isVolume); err == nil {
		t.Error("without procfs it looks as if nobody had the volume")
	}
}

func manyMounts(n int) string {
	var b strings.Builder
	b.WriteString("1 0 0:20 / / rw - overlay overlay rw\n")
	for i := range n {
		fmt.Fprintf(&b, "%d 1 0:50 / /data%d rw - fuse.x src rw\n", 10+i, i)
	}
	return b.String()
}

// A process may end at any time; its container goes on with others.
func TestContainerWhoseFirstProcessEnded(t *testing.T) {
	n := containersNode(t, process(11, "a", podUID, volumeIn), process(12, "b", podUID, volumeIn), process(13, "a", podUID, volumeIn))
	mounts, err := n.mountsIn(room{namespace: "../../ns/a", pids: []int{10, 12, 11, 13}, podUID: podUID, container: "c"}, isVolume)
	if err != nil || len(mounts) != 1 || mounts[0].PID != 11 || !slices.Equal(mounts[0].Others, []int{13}) || mounts[0].PodUID != podUID || mounts[0].ContainerID != "c" {
		t.Errorf("%+v, %v", mounts, err)
	}
	if mounts, err := n.mountsIn(room{namespace: "../../ns/a", pids: []int{10, 12}}, isVolume); !errors.Is(err, errNobody) {
		t.Errorf("nobody is left: %+v, %v", mounts, err)
	}
}

func TestWhatIsKnownOfAContainersMount(t *testing.T) {
	n := containersNode(t, process(10, "a", podUID, volumeIn))
	found, err := n.InContainers([]string{podUID}, isVolume)
	if err != nil || len(found.Mounts) != 1 {
		t.Fatalf("%+v, %v", found, err)
	}
	m := found.Mounts[0]
	info, err := os.Stat(filepath.Join(string(n.cfg.Procfs), "ns/a"))
	if err != nil {
		t.Fatal(err)
	}
	want := Mount{OldID: 2, OldParent: 1, Dev: Dev{0, 50}, Root: "/sub", Path: "/data", Attr: AttrReadOnly | AttrNoSUID | AttrStrictAtime, Propagation: Propagation{Master: 7}, FSType: "fuse.x", Source: "src"}
	m.Mount.SuperOptions = nil
	if m.PodUID != podUID || m.ContainerID != strings.Repeat("c", 64) || m.Namespace != info.Sys().(*syscall.Stat_t).Ino || fmt.Sprint(m.Mount) != fmt.Sprint(want) || m.IDMap {
		t.Errorf("%+v in %d: %+v\nwant %+v", m.ContainerID, m.Namespace, m.Mount, want)
	}
	for _, tc := range []struct{ got, want string }{
		{m.Path(), "/proc/10/root/data"},
		{m.String(), "pod " + podUID + ` container cccccccccccc at "/data"`},
		{ContainerMount{PID: 7, Mount: Mount{Path: "/a\nb"}}.String(), `process 7 at "/a\nb"`},
		{ContainerMount{PID: 7, Mount: Mount{Path: "/"}}.Path(), "/proc/7/root"},
	} {
		if tc.got != tc.want {
			t.Errorf("got %s, want %s", tc.got, tc.want)
		}
	}
}

func TestSwapOfAPlan(t *testing.T) {
	guard := uint64(AttrReadOnly | AttrNoSymFollow)
	source := Mount{ID: 8, OldID: 80, Path: "/k/mount"}
	dead := Mount{ID: 7, OldID: 70, Path: "/data", Attr: AttrNoExec}
	plain := touch.Swap{
		Source: "/k/mount", SourceMount: touch.MountRef{ID: 8, OldID: 80}, Attr: uint64(AttrNoExec), Guard: guard, Before: unix.MS_PRIVATE,
	}
	for name, tc := range map[string]struct {
		change func(*InsidePlan)
		want   func(*touch.Swap)
	}{
		"private":     {func(*InsidePlan) {}, func(*touch.Swap) {}},
		"a directory": {func(p *InsidePlan) { p.Sub = "a/b" }, func(s *touch.Swap) { s.Sub = "a/b" }},
		"slave":       {shares(Propagation{Master: 4}), func(s *touch.Swap) { s.Before = unix.MS_SLAVE }},
		"shared":      {shares(Propagation{Shared: 4}), func(s *touch.Swap) { s.After = unix.MS_SHARED }},
		"slave and shared": {shares(Propagation{Shared: 4, Master: 5}), func(s *touch.Swap) {
			s.Before, s.After = unix.MS_SLAVE, unix.MS_SHARED
		}},
		"unbindable":       {shares(Propagation{Unbindable: true}), func(s *touch.Swap) { s.After = unix.MS_UNBINDABLE }},
		"a peer":           {func(p *InsidePlan) { shares(Propagation{Shared: 4})(p); p.Peer = true }, func(s *touch.Swap) { s.Join = true }},
		"a peer of nobody": {func(p *InsidePlan) { p.Peer = true }, func(*touch.Swap) {}},
		"shut down":        {func(p *InsidePlan) { p.Container.Mount.SuperOptions = []string{"shutdown"} }, func(s *touch.Swap) { s.Ended = true }},
		"interrupted":      {func(p *InsidePlan) { p.Ours = Mount{ID: 9, OldID: 90} }, func(s *touch.Swap) { s.Ours = touch.MountRef{ID: 9, OldID: 90} }},
		"beneath a stray":  {func(p *InsidePlan) { p.Stray = Mount{ID: 9, OldID: 90} }, func(s *touch.Swap) { s.Stray = touch.MountRef{ID: 9, OldID: 90} }},
		"ID-mapped":        {func(p *InsidePlan) { p.Attr |= AttrIDMap; p.Container.Mount.Attr |= AttrIDMap }, func(s *touch.Swap) { s.IDMapped = true }},
		"ID-mapped as host": {func(p *InsidePlan) {
			p.Attr |= AttrIDMap
			p.Container.Mount.Attr |= AttrIDMap
			p.Source.Attr = AttrIDMap
		}, func(*touch.Swap) {}},
		// Of what was left the attributes are not those that it is to have.
		"read-only":      {func(p *InsidePlan) { p.Attr = AttrReadOnly }, func(s *touch.Swap) { s.Attr = uint64(AttrReadOnly) }},
		"read-only left": {func(p *InsidePlan) { p.Container.Mount.Attr = AttrReadOnly | AttrNoSymFollow }, func(*touch.Swap) {}},
	} {
		p := InsidePlan{Container: ContainerMount{Mount: dead}, Attr: dead.Attr, Source: source}
		tc.change(&p)
		want := plain
		tc.want(&want)
		if got := p.swap(); got != want {
			t.Errorf("%s: %+v\nwant %+v", name, got, want)
		}
	}
}

func shares(p Propagation) func(*InsidePlan) {
	return func(plan *InsidePlan) { plan.Container.Mount.Propagation = p }
}

func TestGuarded(t *testing.T) {
	for attr, want := range map[Attr]bool{
		AttrReadOnly | AttrNoSymFollow: true, AttrReadOnly | AttrNoSymFollow | AttrNoExec: true, AttrReadOnly: false, AttrNoSymFollow: false, 0: false,
	} {
		if (Mount{Attr: attr}).Guarded() != want {
			t.Errorf("%s: %v", attr, !want)
		}
	}
}

// On this kernel: a process in a mount namespace of its own has a tmpfs.
func TestLookIntoAContainer(t *testing.T) {
	realKernel(t)
	n, _ := newNode(t)
	at := t.TempDir()
	pid, end := elsewhere(t, `mount -t tmpfs x "$1"; mount -t tmpfs y "$1"`, []string{at})
	here := func(m Mount) bool { return m.Path == at }
	found, err := n.InContainers(nil, here)
	if err != nil || len(found.Mounts) != 1 || found.Mounts[0].PID != pid || len(found.Mounts[0].Below) != 1 || found.Mounts[0].Mount.Source != "y" {
		t.Fatalf("%+v, %v", found, err)
	}
	look := func(m ContainerMount) InsideSight {
		t.Helper()
		sights, err := n.LookInside(context.Background(), []ContainerMount{m})
		if err != nil || len(sights) != 1 {
			t.Fatalf("%+v, %v", sights, err)
		}
		return sights[0]
	}
	m := found.Mounts[0]
	if s := look(m); s.Errno != 0 || s.Silent || s.Unable != "" || s.Ended {
		t.Errorf("it works: %+v", s)
	}
	covered := m
	covered.Mount = m.Below[0]
	if s := look(covered); s.Unable == "" || s.Ended {
		t.Errorf("a mount that is covered: %+v", s)
	}
	reused := m
	reused.Namespace++
	if s := look(reused); !s.Ended {
		t.Errorf("another process by now: %+v", s)
	}
	through := m
	through.PID, through.Others = 1<<22+1, []int{1<<22 + 2, pid}
	if s := look(through); s.PID != pid || s.Ended || s.Unable != "" {
		t.Errorf("through another process: %+v", s)
	}
	end()
	if s := look(m); !s.Ended {
		t.Errorf("it has ended: %+v", s)
	}
	if errs := n.ReplaceInside(context.Background(), []InsidePlan{{Container: m, Source: m.Mount}}); len(errs) != 1 || errs[0] == nil || !strings.Contains(errs[0].Error(), "has ended") {
		t.Errorf("replace where it has ended: %v", errs)
	}
}

// idMappedMount mounts a tmpfs that maps ids as the user namespace of a process.
func idMappedMount(t *testing.T) (at string, pid int) {
	t.Helper()
	cmd := exec.Command("sleep", "600")
	one := []syscall.SysProcIDMap{{ContainerID: 0, HostID: 100000, Size: 1000}, {ContainerID: 1000, HostID: 300000, Size: 10}}
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWUSER, UidMappings: one, GidMappings: one[:1]}
	if err := cmd.Start(); err != nil {
		t.Skipf("no user namespaces here: %v", err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	at = t.TempDir()
	command(t, "mount", "-t", "tmpfs", "x", at)
	t.Cleanup(func() { _ = unix.Unmount(at, unix.MNT_DETACH) })
	users, err := os.Open(fmt.Sprintf("/proc/%d/ns/user", cmd.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	defer users.Close()
	clone, err := unix.OpenTree(-1, at, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(clone)
	attr := &unix.MountAttr{Attr_set: unix.MOUNT_ATTR_IDMAP, Userns_fd: uint64(users.Fd())}
	if err := unix.MountSetattr(clone, "", unix.AT_EMPTY_PATH, attr); err != nil {
		t.Skipf("no ID-mapped tmpfs here (Linux 6.3): %v", err)
	}
	if err := unix.MoveMount(clone, "", -1, at, unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(at, unix.MNT_DETACH) })
	return at, cmd.Process.Pid
}
