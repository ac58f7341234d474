package workerops

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/csi-addons/node-healer/pkg/mount"
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
		case len(text) > 3 && text[:3] == "-> ":
			must(t, os.Symlink(text[3:], name))
		default:
			must(t, os.WriteFile(name, []byte(text), 0o600))
		}
	}
	put("self", "-> 7")
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

// inTree walks over the processes, and returns those that stand for a namespace with a
// mount of the superblock 8:16.
func inTree(t *testing.T, budget time.Duration, processes map[int]map[string]string) (s *scan, pids []int) {
	t.Helper()
	s = newScan(procTree(t, processes))
	s.end = time.Now().Add(budget)
	all, err := s.whoRuns()
	must(t, err)
	s.readProcesses(all)
	for _, m := range s.mountsOf(mount.Dev{Major: 8, Minor: 16}) {
		pids = append(pids, m.pid)
	}
	slices.Sort(pids)
	return s, pids
}

func TestProcessThatCannotBeRead(t *testing.T) {
	s, pids := inTree(t, time.Minute, map[int]map[string]string{
		10: {"ns/mnt": "-> mnt:[101]"},
		20: {"mountinfo": "FIFO"},
		30: {"ns/mnt": "-> mnt:[102]"},
	})
	if !slices.Equal(pids, []int{10, 30}) || !s.cut {
		t.Errorf("mounted in %v, cut: %v", pids, s.cut)
	}
}

func TestWalkWithinTheBudget(t *testing.T) {
	if s, _ := inTree(t, 0, map[int]map[string]string{10: {"mountinfo": "FIFO"}, 20: {"mountinfo": "FIFO"}}); !s.cut {
		t.Error("an answer without a budget passes for the whole one")
	}
}

// 7 is the worker, 5 its server.
func TestWalkLeavesOutOurselves(t *testing.T) {
	in := func(namespace, parent int) map[string]string {
		return map[string]string{"ns/mnt": fmt.Sprintf("-> mnt:[%d]", namespace), "status": fmt.Sprintf("Name:\tx\nPPid:\t%d\n", parent)}
	}
	_, pids := inTree(t, time.Minute, map[int]map[string]string{5: in(101, 1), 7: in(102, 5), 9: in(103, 7), 10: in(104, 1)})
	if !slices.Equal(pids, []int{9, 10}) {
		t.Errorf("mounted in %v", pids)
	}
}

func TestOddProcesses(t *testing.T) {
	for name, tc := range map[string]struct {
		files       map[string]string
		seen        bool
		cut, unseen bool
	}{
		"has it":                 {seen: true},
		"kernel thread":          {files: map[string]string{"exe": ""}},
		"first thread has ended": {files: map[string]string{"exe": "", "task/11/comm": "x\n"}, unseen: true},
		"only beneath its root":  {files: map[string]string{"root": "-> /data", "mountinfo": "2 1 8:16 / / rw - ext4 /dev/sdb rw\n"}, seen: true, cut: true},
	} {
		s, pids := inTree(t, time.Minute, map[int]map[string]string{10: tc.files})
		if (len(pids) == 1) != tc.seen || s.cut != tc.cut || s.unseen[10] != tc.unseen {
			t.Errorf("%s: mounted in %v, cut: %v, unseen: %v", name, pids, s.cut, s.unseen)
		}
	}
}

func TestWalkWithoutProcfs(t *testing.T) {
	if _, err := newScan(-1).whoRuns(); err == nil {
		t.Error("no error: it looks as if nothing ran")
	}
}
