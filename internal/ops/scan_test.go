package ops

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/csi-addons/node-healer/internal/mount"
	"github.com/csi-addons/node-healer/pkg/facts"
)

// procTree makes a procfs of text. A process has the files that are given, and
// what else it needs.
func procTree(t *testing.T, processes map[int]map[string]string) procfs {
	t.Helper()
	root := t.TempDir()
	put := func(name, text string) {
		name = filepath.Join(root, name)
		must(t, os.MkdirAll(filepath.Dir(name), 0o700))
		switch {
		case text == "FIFO":
			must(t, unix.Mkfifo(name, 0o600))
			t.Cleanup(func() { // let the reader go
				if fd, err := unix.Open(name, unix.O_WRONLY|unix.O_NONBLOCK, 0); err == nil {
					must(t, unix.Close(fd))
				}
			})
		case text == "SLOW": // its reader waits
			must(t, unix.Mkfifo(name, 0o600))
			go func() {
				if fd, err := unix.Open(name, unix.O_WRONLY, 0); err == nil { // has been opened by a reader
					time.Sleep(50 * time.Millisecond)
					_ = unix.Close(fd)
				}
			}()
		case text == "ONCE": // its first reader waits until the test ends, and no other one
			must(t, unix.Mkfifo(name, 0o600))
			gone := make(chan struct{})
			go func() {
				fd, err := unix.Open(name, unix.O_WRONLY, 0)
				if err == nil {
					must(t, os.Remove(name))
					must(t, os.WriteFile(name, nil, 0o600))
					<-gone
					_ = unix.Close(fd)
				}
			}()
			t.Cleanup(func() { close(gone) })
		case len(text) > 3 && text[:3] == "-> ":
			must(t, os.Symlink(text[3:], name))
		default:
			must(t, os.WriteFile(name, []byte(text), 0o600))
		}
	}
	put("self", "-> 7")
	put("thread-self/ns/mnt", "-> mnt:[100]")
	for pid, files := range processes {
		all := map[string]string{
			"exe": "-> /bin/x", "root": "-> /", "ns/mnt": "-> mnt:[100]", "status": "Name:\tx\nPPid:\t1\n",
			"mountinfo": hasVolume, fmt.Sprintf("task/%d/comm", pid): "x\n",
		}
		for name, text := range files {
			all[name] = text
		}
		for name, text := range all {
			if text != "" {
				put(fmt.Sprintf("%d/%s", pid, name), text)
			}
		}
	}
	proc, err := openDir(root)
	must(t, err)
	t.Cleanup(func() { _ = unix.Close(proc) })
	return procfs(proc)
}

const hasVolume = "1 0 0:2 / / rw - ext4 /dev/x rw\n2 1 8:16 / /data rw - ext4 /dev/sdb rw\n"

// inTree reads the mount table of each process, and returns those that showed it.
func inTree(t *testing.T, budget time.Duration, processes map[int]map[string]string) (s *scan, read []int) {
	t.Helper()
	s = &scan{proc: procTree(t, processes)}
	s.end = time.Now().Add(budget)
	all, err := s.otherProcesses()
	must(t, err)
	each(s, all, func(pid int) error {
		_, err := s.proc.read(fmt.Sprintf("%d/mountinfo", pid), 4<<10)
		return err
	}, func(pid int, err error, ok bool) {
		if ok && err == nil {
			read = append(read, pid)
		}
	})
	slices.Sort(read)
	return s, read
}

func TestProcessThatCannotBeRead(t *testing.T) {
	readAre(t, []int{10, 30}, map[int]map[string]string{10: nil, 20: {"mountinfo": "FIFO"}, 30: nil})
}

// readAre reads in trees until no process but those that cannot be read is left out, as a busy machine
// may read one too late.
func readAre(t *testing.T, want []int, processes map[int]map[string]string) {
	t.Helper()
	for end := time.Now().Add(time.Minute); ; {
		_, read := inTree(t, time.Minute, processes)
		if slices.Equal(read, want) {
			return
		}
		if len(read) >= len(want) || time.Now().After(end) {
			t.Fatalf("read %v, want %v", read, want)
		}
	}
}

// A worker that a busy node keeps from a processor skips nothing.
func TestProcessThatIsReadLateOnce(t *testing.T) {
	begun, later := make(chan bool, 1), make(chan struct{})
	defer close(later)
	begun <- true
	s := &scan{end: time.Now().Add(time.Minute)}
	var read []int
	each(s, []int{10, 20, 30}, func(pid int) int {
		if pid == 20 {
			select {
			case <-begun:
				<-later
			default:
			}
		}
		return pid
	}, func(pid, got int, ok bool) {
		if ok && got == pid {
			read = append(read, pid)
		}
	})
	if !slices.Equal(read, []int{10, 20, 30}) || s.cut {
		t.Errorf("read %v, cut %v", read, s.cut)
	}
}

func TestWalkWithinTheBudget(t *testing.T) {
	if s, _ := inTree(t, 0, map[int]map[string]string{10: {"mountinfo": "FIFO"}, 20: {"mountinfo": "FIFO"}}); !s.cut {
		t.Error("an answer without a budget passes for the whole one")
	}
}

var aStat = fmt.Sprintf("1 (x) S 1%s\n", strings.Repeat(" 1", 30))

// A file may have any number of locks, each of which makes reading its fdinfo longer.
func TestSlowPodsLeaveTimeForOthers(t *testing.T) {
	const slow = 20
	for name, its := range map[string]map[string]string{
		"": {"cgroup": "0::/kubepods/poda/x\n", "fd/3": "-> /x", "fdinfo/3": "FIFO"},
		"without a first thread": {
			"cgroup": "0::/\n", "ns/mnt": "", "task/2/stat": aStat, // as with cgroup v1
			"task/2/cgroup": "0::/kubepods/poda/x\n", "task/2/ns/mnt": "-> mnt:[100]", "task/2/fd/3": "-> /x", "task/2/fdinfo/3": "FIFO",
		},
	} {
		if a := walkedBeside(t, slow, its, slow*itemTimeout); len(a.Daemons) != 1 || a.Daemons[0].PodUID != "b" || a.Unread != slow || !slices.Equal(a.Blocked, []string{"a"}) {
			t.Errorf("%s: %+v", name, a)
		}
		if a := walkedBeside(t, slow, its, time.Hour, "a"); len(a.Daemons) != 1 || a.Unread != slow || len(a.Blocked) != 0 {
			t.Errorf("%s, left out: %+v", name, a)
		}
	}
}

// A file may be another one by the time it is read again: the thread that read the first one waits nevertheless. And a
// pod whose file was being read when the budget ended blocks nothing.
func TestBlockedPods(t *testing.T) {
	process := func(pod, fdinfo string) map[string]string {
		return map[string]string{"stat": aStat, "cgroup": "0::/kubepods/pod" + pod + "/x\n", "fd/3": "-> /x", "fdinfo/3": fdinfo}
	}
	for _, tc := range []struct {
		first  string
		budget time.Duration
	}{{"ONCE", time.Minute}, {"FIFO", 2*itemTimeout + 25*time.Millisecond}} {
		s := &scan{proc: procTree(t, map[int]map[string]string{10: process("a", tc.first), 20: process("v", "SLOW"), 30: process("v", "SLOW")})}
		s.end = time.Now().Add(tc.budget)
		if a, err := s.daemons(ProcessesQuery{}); err != nil || !slices.Equal(a.Blocked, []string{"a"}) {
			t.Errorf("%s: %v, %v", tc.first, a.Blocked, err)
		}
	}
}

// The budget is half of --probe-timeout, which has to do for the rest of the walk, too.
func TestBlockedProcessLeavesTimeToAnswer(t *testing.T) {
	for _, budget := range []time.Duration{100 * time.Millisecond, itemTimeout, 2 * itemTimeout} {
		s := &scan{proc: procTree(t, map[int]map[string]string{
			10: {"stat": aStat, "cgroup": "0::/kubepods/poda/x\n", "fd/3": "-> /x", "fdinfo/3": "FIFO"},
		})}
		began := time.Now()
		s.end = began.Add(budget)
		a, err := s.daemons(ProcessesQuery{})
		if took := time.Since(began); took >= 2*budget || err != nil || !slices.Equal(a.Blocked, []string{"a"}) {
			t.Errorf("%s: took %s: %v, %v", budget, took, a.Blocked, err)
		}
	}
}

// A driver's pod may have hundreds of daemons, and a busy node may keep the worker from a processor.
func TestPodThatTakesLongIsRead(t *testing.T) {
	its := map[string]string{"cgroup": "0::/kubepods/poda/x\n", "fd/3": "-> /x", "fdinfo/3": "SLOW"}
	var a ProcessesAnswer
	for range 20 { // a busy machine may read one too late
		if a = walkedBeside(t, 14, its, time.Minute); len(a.Daemons) == 1 && a.Unread == 0 {
			return
		}
	}
	t.Errorf("%+v", a)
}

// walkedBeside walks over a daemon of pod b and others that come first.
func walkedBeside(t *testing.T, others int, its map[string]string, budget time.Duration, skip ...string) ProcessesAnswer {
	t.Helper()
	var mounted facts.Mount
	must(t, (thread{}).visit(func(m facts.Mount) { mounted = m }))
	processes := map[int]map[string]string{99: {
		"stat": aStat, "cgroup": "0::/kubepods/podb/x\n",
		"fd/3": "-> /dev/fuse", "fdinfo/3": fmt.Sprintf("fuse_connection:\t%d\n", mounted.Dev.FUSEConnection()),
	}}
	for pid := 10; pid < 10+others; pid++ {
		processes[pid] = maps.Clone(its)
		processes[pid]["stat"] = aStat
	}
	s := &scan{proc: procTree(t, processes), end: time.Now().Add(budget)}
	a, err := s.daemons(ProcessesQuery{Skip: skip})
	must(t, err)
	return a
}

// 7 is the worker, 5 its server.
func TestWalkLeavesOutOurselves(t *testing.T) {
	childOf := func(parent int) map[string]string {
		return map[string]string{"status": fmt.Sprintf("Name:\tx\nPPid:\t%d\n", parent)}
	}
	readAre(t, []int{9, 10}, map[int]map[string]string{5: childOf(1), 7: childOf(5), 9: childOf(7), 10: childOf(1)})
}

func TestWalkWithoutProcfs(t *testing.T) {
	if _, err := (&scan{proc: -1}).otherProcesses(); err == nil {
		t.Error("no error: it looks as if nothing ran")
	}
}

// A process shows the mounts beneath its root only: the namespace is entered for the rest.
func TestMountsInAnotherMountNamespace(t *testing.T) {
	v := newVolume(t, "tmpfs")
	for _, way := range []string{"none=", "root=" + v.path + "/dir"} {
		pid := holder(t, syscall.CLONE_NEWNS, way)
		namespaces, err := readNamespaces(func(table []facts.Mount) []facts.Mount {
			return slices.DeleteFunc(table, func(m facts.Mount) bool { return m.Dev != v.number })
		})
		must(t, err)
		defer closeAll(namespaces)
		at := slices.IndexFunc(namespaces, func(ns namespace) bool { return mount.IsInode(int(ns.file.Fd()), namespaceOf(t, pid)) })
		if at < 0 || namespaces[at].pid != pid || namespaces[at].table[0].Path != v.path {
			t.Errorf("%s: %+v", way, namespaces)
		}
	}
}
