package ops

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/csi-addons/node-healer/internal/mount"
	"github.com/csi-addons/node-healer/pkg/facts"
)

// namespaceRef names the mount namespace of a process.
func namespaceRef(t *testing.T, pid int) facts.Container {
	t.Helper()
	cgroup, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
	must(t, err)
	return facts.Container{Workload: WorkloadIn(string(cgroup)), PID: pid, Namespace: namespaceOf(t, pid)}
}

func namespaceOf(t *testing.T, pid int) uint64 {
	t.Helper()
	var st unix.Stat_t
	must(t, unix.Stat(fmt.Sprintf("/proc/%d/ns/mnt", pid), &st))
	return st.Ino
}

// inUserNamespace starts a process that has a user namespace and a mount namespace
// of its own, as anybody can make them, with a file open there.
func inUserNamespace(t *testing.T, file string) int {
	t.Helper()
	needsRoot(t)
	cmd := exec.Command("unshare", "--user", "--map-root-user", "--mount", "--propagation=unchanged", "sh", "-c", `exec 3<"$1"; echo ready; exec sleep 600`, "sh", file)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	out, err := cmd.StdoutPipe()
	must(t, err)
	runtime.LockOSThread() // it dies with the thread that starts it
	must(t, cmd.Start())
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	if line, err := bufio.NewReader(out).ReadString('\n'); line != "ready\n" {
		t.Fatalf("%q, %v", line, err)
	}
	return cmd.Process.Pid
}

// paths returns what was found, as sorted paths.
func (m MountsOf) paths() (all []string) {
	for _, e := range m.Mounts {
		all = append(all, e.Path)
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// volumeInContainer is a tmpfs, with another one in it, and a container that has both mounted.
type volumeInContainer struct {
	volume
	t         *testing.T
	container facts.Container
}

func newVolumeInContainer(t *testing.T) volumeInContainer {
	t.Helper()
	v := newVolume(t, "tmpfs")
	must(t, unix.Mount("named", v.path+"/dir", "tmpfs", 0, ""))
	t.Cleanup(func() { _ = unix.Unmount(v.path+"/dir", unix.MNT_DETACH) })
	return volumeInContainer{volume: v, t: t, container: namespaceRef(t, holder(t, syscall.CLONE_NEWNS, "none="))}
}

// ask asks for the mounts of the volume's superblock, or for what a change of the query says.
func (v volumeInContainer) ask(change func(*MountsQuery)) MountsOf {
	v.t.Helper()
	q := MountsQuery{Of: []facts.Container{v.container}, Wanted: facts.Filter{Superblocks: []facts.Dev{v.number}}, Limit: 8}
	change(&q)
	a, err := containerMounts(q)
	must(v.t, err)
	if len(a) != len(q.Of) {
		v.t.Fatalf("%+v", a)
	}
	return a[0]
}

// way returns the mount points on the way to the volume, the volume and these paths.
func (v volumeInContainer) way(paths ...string) []string {
	for p := v.path; p != "/"; p = filepath.Dir(p) {
		if isMountPoint(v.t, p) {
			paths = append(paths, p)
		}
	}
	slices.Sort(paths)
	return slices.Compact(append([]string{"/"}, paths...))
}

func TestMountsOfAContainer(t *testing.T) {
	v := newVolumeInContainer(t)
	for name, tc := range map[string]struct {
		change func(*MountsQuery)
		want   []string
		ended  bool
		many   bool
	}{
		"its superblock": {change: func(*MountsQuery) {}, want: v.way()},
		"its type and source": {
			change: func(q *MountsQuery) { q.Wanted.Superblocks, q.Wanted.FSType, q.Wanted.Source = nil, "tmpfs", "named" },
			want:   v.way(v.path + "/dir"),
		},
		"another source":      {change: func(q *MountsQuery) { q.Wanted.Superblocks, q.Wanted.FSType, q.Wanted.Source = nil, "tmpfs", "other" }},
		"another superblock":  {change: func(q *MountsQuery) { q.Wanted.Superblocks = []facts.Dev{{Major: 1, Minor: 2}} }},
		"not left by a step":  {change: func(q *MountsQuery) { q.Wanted.Superblocks, q.Wanted.Current = nil, v.number }},
		"more than the limit": {change: func(q *MountsQuery) { q.Limit = 0 }, many: true},
		"another namespace":   {change: func(q *MountsQuery) { q.Of[0].Namespace++ }, ended: true},
		"another container":   {change: func(q *MountsQuery) { q.Of[0].Dir += "x" }, ended: true},
		"no process":          {change: func(q *MountsQuery) { q.Of[0].PID = 1<<22 + 1 }, ended: true},
		"of another user": {
			change: func(q *MountsQuery) { q.Of[0] = namespaceRef(t, inUserNamespace(t, v.path)) },
			ended:  true,
		},
		"one beside a gone one": {
			change: func(q *MountsQuery) { q.Of = append(q.Of, facts.Container{PID: 1<<22 + 1}) },
			want:   v.way(),
		},
	} {
		got := v.ask(tc.change)
		if !slices.Equal(got.paths(), tc.want) || got.Ended != tc.ended || got.Many != tc.many || got.Err != "" {
			t.Errorf("%s: %q, %+v, want %q", name, got.paths(), got, tc.want)
		}
	}
}

func TestMountsThatAStepLeftInAContainer(t *testing.T) {
	v := newVolumeInContainer(t)
	must(t, unix.MountSetattr(unix.AT_FDCWD, v.path, 0, &unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY | unix.MOUNT_ATTR_NOSYMFOLLOW}))
	left := holder(t, syscall.CLONE_NEWNS, "none=")
	got := v.ask(func(q *MountsQuery) {
		q.Of[0], q.Wanted.Superblocks, q.Wanted.Current = namespaceRef(t, left), nil, v.number
	})
	if !slices.Equal(got.paths(), v.way()) {
		t.Errorf("left by a step: %+v", got)
	}
	for _, e := range got.Mounts {
		if e.Path == v.path && mount.NamespaceID(openNamespace(t, left)) != 0 && e.ID != uniqueID(unix.AT_FDCWD, fmt.Sprintf("/proc/%d/root%s", left, v.path), 0) {
			t.Errorf("its id is %#x", e.ID)
		}
	}
}

func openNamespace(t *testing.T, pid int) int {
	t.Helper()
	f, err := os.Open(fmt.Sprintf("/proc/%d/ns/mnt", pid))
	must(t, err)
	t.Cleanup(func() { _ = f.Close() })
	return int(f.Fd())
}

func isMountPoint(t *testing.T, path string) bool {
	t.Helper()
	raw, err := os.ReadFile("/proc/self/mountinfo")
	must(t, err)
	return bytes.Contains(raw, []byte(" "+path+" "))
}

// What decides whether a namespace may be entered is who made it, as the kernel tells.
func TestOwnerOfTheNamespaceOfAProcess(t *testing.T) {
	proc, host, err := openProcfs()
	must(t, err)
	defer proc.close()
	o := owners{host: host, known: map[uint64]bool{}}
	for pid, want := range map[int]bool{os.Getpid(): true, inUserNamespace(t, newVolume(t, "tmpfs").file): false} {
		if got, err := o.of(proc, strconv.Itoa(pid), namespaceOf(t, pid)); err != nil || got != want {
			t.Errorf("process %d: the host's owner has its namespace: %v, %v", pid, got, err)
		}
	}
}

// Who made it for himself chooses what is mounted there: it is not read.
func TestNamespacesOfAnotherOwner(t *testing.T) {
	v := newVolume(t, "tmpfs")
	must(t, unix.Mount("", v.path, "", unix.MS_SHARED, "")) // else nothing there would be of interest
	pid := inUserNamespace(t, v.file)
	namespaces, err := ownedNamespaces(topAt(t, v.path))
	must(t, err)
	defer closeAll(namespaces)
	for _, ns := range namespaces {
		if mount.IsInode(int(ns.file.Fd()), namespaceOf(t, pid)) {
			t.Error("it was read")
		}
	}
	if len(namespaces) == 0 {
		t.Error("not even our own was read")
	}
	target := facts.ContainerMount{Container: facts.Container{PID: pid, Namespace: namespaceOf(t, pid)}, Mount: mountAt(t, v.path)}
	if r := run(t, facts.ContainerSwap{Container: target})[0]; !r.Refused || r.Ended {
		t.Errorf("a replacement there: %+v", r)
	}
	if a, err := probeInContainer(target); err != nil || a.Err == "" || a.Ended {
		t.Errorf("a look there: %+v, %v", a, err)
	}
}

// A process that has gone to a namespace of its own making shows a table of its
// choice: it stops nobody, and uses up nothing of what others may be read.
func TestTableOfAProcessThatHasLeft(t *testing.T) {
	root := t.TempDir()
	must(t, os.MkdirAll(filepath.Join(root, "10/ns"), 0o700))
	must(t, os.Symlink(fmt.Sprintf("mnt:[%d]", foreign), filepath.Join(root, "10/ns/mnt")))
	good := "1 0 0:20 / / rw - ext4 /dev/a rw\n"
	proc, err := openDir(root)
	must(t, err)
	defer unix.Close(proc)
	for table, fails := range map[string]bool{good: false, good + "junk\n": true} {
		must(t, os.WriteFile(filepath.Join(root, "10/mountinfo"), []byte(table), 0o600))
		r := matching{proc: procfs(proc)}
		visit := func(facts.Mount) error { return nil }
		if err := r.readTable("10", one, visit); !errors.Is(err, errEnded) || r.read != 0 {
			t.Errorf("%q, by one that has left: %v, %d mounts", table, err, r.read)
		}
		if err := r.readTable("10", foreign, visit); (err != nil) != fails || r.read != 1 {
			t.Errorf("%q: %v, %d mounts", table, err, r.read)
		}
	}
}
