package ops

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/csi-addons/node-healer/internal/mount"
	"github.com/csi-addons/node-healer/internal/operation"
	"github.com/csi-addons/node-healer/pkg/facts"
)

// silentFUSE is a FUSE mount whose daemon reads no request.
type silentFUSE struct {
	path   string
	mount  facts.Mount
	daemon *exec.Cmd
}

// newSilentFUSE gives the daemon open files besides.
func newSilentFUSE(t *testing.T, files ...*os.File) silentFUSE {
	t.Helper()
	needsRoot(t)
	_ = unix.Mount("fusectl", fusectl, "fusectl", 0, "") // it mostly is; in our own mount namespace
	f := silentFUSE{path: t.TempDir(), daemon: exec.Command("sleep", "1000")}
	dev, err := os.OpenFile("/dev/fuse", os.O_RDWR, 0)
	must(t, err)
	must(t, unix.Mount("silent", f.path, "fuse.silent", 0, fmt.Sprintf("fd=%d,rootmode=40000,user_id=0,group_id=0,allow_other", dev.Fd())))
	t.Cleanup(func() { _ = unix.Unmount(f.path, unix.MNT_DETACH) })
	f.daemon.ExtraFiles = append([]*os.File{dev}, files...)
	f.daemon.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	runtime.LockOSThread()
	must(t, f.daemon.Start())
	must(t, dev.Close())
	t.Cleanup(f.kill)
	f.mount = mountAtPath(t, f.path)
	return f
}

func mountAtPath(t *testing.T, path string) (found facts.Mount) {
	t.Helper()
	must(t, thread{}.visit(func(m facts.Mount) {
		if m.Path == path {
			found = m
		}
	}))
	if found.OldID == 0 {
		t.Fatalf("nothing is mounted on %s", path)
	}
	return found
}

func (f silentFUSE) kill() {
	_ = f.daemon.Process.Kill()
	_ = f.daemon.Wait()
}

func (f silentFUSE) connection() uint64 { return uint64(f.mount.Dev.Minor) }

// daemons returns who serves the mount.
func (f silentFUSE) daemons(t *testing.T) (found []facts.FUSEDaemon) {
	t.Helper()
	a := daemonsWalked(t, ProcessesQuery{})
	if a.Cut {
		t.Error("the answer is cut")
	}
	for _, d := range a.Daemons {
		if d.Connection == f.connection() {
			found = append(found, d)
		}
	}
	if len(found) == 0 && a.Untold > 0 && len(a.Daemons) == 0 {
		t.Skip("this kernel does not tell whose connection a FUSE device is")
	}
	return found
}

func (f silentFUSE) abort(change func(*facts.AbortPlan)) error {
	q := facts.AbortPlan{Mount: f.mount, Paths: []string{f.path}}
	if change != nil {
		change(&q)
	}
	_, err := abortFUSE(q)
	return err
}

// aborted is true if the connection is: poll(2) of its device tells.
func (f silentFUSE) aborted(t *testing.T) bool {
	t.Helper()
	pidfd, err := unix.PidfdOpen(f.daemon.Process.Pid, 0)
	must(t, err)
	defer unix.Close(pidfd)
	device, err := unix.PidfdGetfd(pidfd, 3, 0) // the first of its ExtraFiles
	must(t, err)
	defer unix.Close(device)
	poll := []unix.PollFd{{Fd: int32(device)}}
	_, err = mount.RetryEINTR(func() (int, error) { return unix.Poll(poll, 0) })
	must(t, err)
	return poll[0].Revents&unix.POLLERR != 0
}

func TestFUSEDaemons(t *testing.T) {
	f, other := newSilentFUSE(t), newSilentFUSE(t)
	fake := filepath.Join(t.TempDir(), "fuse") // has the device's name
	must(t, os.WriteFile(fake, []byte("fuse_connection:\t1\n"), 0o600))
	pid := holder(t, 0, "open="+fake)
	eventuallyState(t, f, 'S')
	found := f.daemons(t)
	if len(found) != 1 || found[0].PID != f.daemon.Process.Pid || found[0].Command != "sleep" {
		t.Fatalf("daemons %+v", found)
	}
	if since := found[0].Started; since <= 0 || found[0].Dir == "" {
		t.Errorf("started %s after the boot, in cgroup %q", since, found[0].Dir)
	}
	if o := other.daemons(t); len(o) != 1 || o[0].PID == pid || o[0].PID == found[0].PID {
		t.Errorf("the other one's are %+v", o)
	}
	must(t, f.daemon.Process.Signal(unix.SIGSTOP))
	eventuallyState(t, f, 'T')
	f.kill()
	if found := f.daemons(t); len(found) != 0 {
		t.Errorf("it was killed, and there are %+v", found)
	}
}

func eventuallyState(t *testing.T, f silentFUSE, want byte) {
	t.Helper()
	for end := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		if found := f.daemons(t); len(found) == 1 && found[0].State == want {
			return
		} else if time.Now().After(end) {
			t.Fatalf("daemons %+v, want state %c", found, want)
		}
	}
}

func TestAbortFUSE(t *testing.T) {
	f, other := newSilentFUSE(t), newSilentFUSE(t)
	if err := f.abort(func(q *facts.AbortPlan) { q.CheckOnly = true }); err != nil || f.aborted(t) {
		t.Fatalf("a check only: %v", err)
	}
	for range 2 {
		must(t, f.abort(nil))
		if !f.aborted(t) {
			t.Fatal("the connection is not aborted")
		}
	}
	if other.aborted(t) {
		t.Error("another one is aborted")
	}
	must(t, other.abort(nil))
}

func TestAbortFUSERefuses(t *testing.T) {
	f := newSilentFUSE(t)
	elsewhere := t.TempDir()
	must(t, unix.Mount(f.path, elsewhere, "", unix.MS_BIND, ""))
	defer func() { _ = unix.Unmount(elsewhere, unix.MNT_DETACH) }()
	tmpfs := newVolume(t, "tmpfs")
	both := []string{f.path, elsewhere}
	for says, change := range map[string]func(*facts.AbortPlan){
		"also mounted on":                    nil,
		"mount namespace of process":         func(q *facts.AbortPlan) { q.Paths = []string{elsewhere} },
		"is topmost at the mount point now":  func(q *facts.AbortPlan) { q.Paths, q.Mount.Path = both, elsewhere },
		"another filesystem is at the mount": func(q *facts.AbortPlan) { q.Paths, q.Mount.Dev.Minor = both, q.Mount.Dev.Minor+1 },
		"another filesystem":                 func(q *facts.AbortPlan) { q.Mount = mountAtPath(t, tmpfs.path) },
	} {
		if err := f.abort(change); !errors.Is(err, operation.ErrRefused) || !strings.Contains(err.Error(), says) {
			t.Errorf("%q: %v", says, err)
		}
	}
	if f.aborted(t) {
		t.Fatal("it was aborted")
	}
	// A copy in another namespace belongs to it; what is only there does not.
	inside := holder(t, unix.CLONE_NEWNS, "open=/dev/null")
	must(t, unix.Unmount(elsewhere, unix.MNT_DETACH))
	if err := f.abort(nil); !errors.Is(err, operation.ErrRefused) || !strings.Contains(err.Error(), fmt.Sprint(inside)) {
		t.Errorf("mounted in another namespace: %v", err)
	}
	if err := f.abort(func(q *facts.AbortPlan) { q.Paths = both }); err != nil {
		t.Errorf("the volume's in another namespace: %v", err)
	}
}

func TestCheckSilent(t *testing.T) {
	f, tmpfs := newSilentFUSE(t), newVolume(t, "tmpfs")
	open := func(path string) int {
		fd, err := unix.Open(path, unix.O_PATH|unix.O_CLOEXEC, 0)
		must(t, err)
		t.Cleanup(func() { _ = unix.Close(fd) })
		return fd
	}
	answers := open(tmpfs.path)
	for end := time.Now().Add(time.Minute); ; { // on a busy machine it may not answer in time
		if err := checkSilent(answers); errors.Is(err, operation.ErrRefused) {
			break
		} else if time.Now().After(end) {
			t.Fatalf("it answers: %v", err)
		}
	}
	fd := open(f.path)
	if err := checkSilent(fd); err != nil {
		t.Errorf("it is silent: %v", err)
	}
	f.kill()
	if err := checkSilent(fd); err != nil {
		t.Errorf("it has no daemon: %v", err)
	}
}

func TestAbortFUSEOfAnothersMounts(t *testing.T) {
	const path = "/var/lib/kubelet/pods/a/mount"
	q := facts.AbortPlan{Paths: []string{path}, Pods: []string{"a"}}
	ofPod := func(pod string) string { return "0::/kubepods/pod" + pod + "/0123456789ab" }
	for name, tc := range map[string]struct {
		path string
		in   namespace
		ours bool
	}{
		"the mount point":                   {path, namespace{home: true}, true},
		"another path":                      {"/var/lib/kubelet/pods/b/mount", namespace{home: true}, false},
		"a copy on the host":                {"/copy" + path, namespace{home: true}, false},
		"a copy elsewhere":                  {"/host" + path, namespace{cgroup: "0::/system.slice/x.service"}, true},
		"in a container of its pod":         {"/data", namespace{cgroup: ofPod("a")}, true},
		"in a container of another pod":     {"/data", namespace{cgroup: ofPod("b")}, false},
		"in a namespace of a service":       {"/data", namespace{cgroup: "0::/system.slice/x.service"}, false},
		"in the host's, by a pod's process": {"/data", namespace{home: true, cgroup: ofPod("a")}, false},
		"of a process that has ended":       {"/data", namespace{}, false},
	} {
		if ours := isOfVolume(q, tc.path, tc.in); ours != tc.ours {
			t.Errorf("%s: ours %v", name, ours)
		}
	}
}

// A driver may serve its volumes itself, and have the healer in the same process.
func TestFUSEDaemonThatIsTheServer(t *testing.T) {
	f := newSilentFUSE(t)
	stat := "5 (driver) S 1 5 5 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 4711 0\n"
	s := &scan{end: time.Now().Add(time.Minute), proc: procTree(t, map[int]map[string]string{
		5: {"stat": stat, "cgroup": "0::/\n", "fd/3": "-> /dev/fuse", "fdinfo/3": fmt.Sprintf("fuse_connection:\t%d\n", f.connection())},
		7: {"status": "PPid:\t5\n"}, // the worker
	})}
	a, err := s.processes(&owners{}, ProcessesQuery{Daemons: true})
	if err != nil || len(a.Daemons) != 1 || a.Daemons[0].PID != 5 || a.Daemons[0].Connection != f.connection() {
		t.Errorf("%+v, %v", a, err)
	}
}
