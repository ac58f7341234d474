package workerops

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"
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
	put("filesystems", "nodev\tnfs4\n")
	put("self", "-> 7")
	for pid, files := range processes {
		all := map[string]string{
			"exe": "-> /bin/x", "root": "-> /", "cwd": "-> /", "ns/mnt": "-> mnt:[100]", "comm": "x\n",
			"cgroup": "0::/\n", "status": "Name:\tx\nPPid:\t1\n", "mountinfo": hasVolume,
			fmt.Sprintf("task/%d/comm", pid): "x\n", "fd/0": "-> pipe:[1]", "fdinfo/0": "mnt_id:\t15\n",
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

// inTree returns the answer for superblock 8:16, and the processes that hold it.
func inTree(t *testing.T, budget time.Duration, processes map[int]map[string]string) (HoldersAnswer, []int) {
	t.Helper()
	a, err := newScan(procTree(t, processes), HoldersQuery{Superblocks: []Number{{8, 16}}}).run(budget)
	must(t, err)
	var pids []int
	for _, p := range a.Superblocks[Number{8, 16}].Processes {
		pids = append(pids, p.PID)
	}
	return a, pids
}

const hasVolume = "1 0 0:2 / / rw - ext4 /dev/x rw\n2 1 8:16 / /data rw - ext4 /dev/sdb rw\n"

// opens is a process that has a file of the volume open, and what else is given.
func opens(files ...string) map[string]string {
	all := map[string]string{"fd/3": "-> /data/x", "fdinfo/3": "pos:\t0\nmnt_id:\t2\n"}
	for i := 0; i < len(files); i += 2 {
		all[files[i]] = files[i+1]
	}
	return all
}

func TestHoldersBehindAProcessThatCannotBeRead(t *testing.T) {
	for _, file := range []string{"mountinfo", "fdinfo/3", "comm"} {
		t.Run(file, func(t *testing.T) {
			blocks := map[string]string{file: "FIFO"}
			if file == "fdinfo/3" {
				blocks["fd/3"] = "-> /data/x"
			}
			if file == "comm" {
				blocks["cwd"] = "-> /data"
			}
			a, pids := inTree(t, time.Minute, map[int]map[string]string{
				10: {"ns/mnt": "-> mnt:[101]", "cwd": "-> /data"},
				20: blocks,
				30: opens("ns/mnt", "-> mnt:[102]"),
			})
			if !slices.Contains(pids, 10) || !slices.Contains(pids, 30) {
				t.Errorf("held by %v", pids)
			}
			if (a.Unseen == 1) != (file == "fdinfo/3") || a.Cut != (file == "mountinfo") {
				t.Errorf("%d unseen", a.Unseen)
			}
		})
	}
}

func TestHoldersWithinTheBudget(t *testing.T) {
	a, _ := inTree(t, 0, map[int]map[string]string{10: opens("fdinfo/3", "FIFO"), 20: opens("fdinfo/3", "FIFO")})
	if !a.Cut {
		t.Error("an answer without a budget passes for the whole one")
	}
}

// 7 is the worker, 5 its server.
func TestHoldersLeavesOutOurselves(t *testing.T) {
	holds := func(parent int) map[string]string {
		return opens("status", fmt.Sprintf("Name:\tx\nPPid:\t%d\n", parent))
	}
	_, pids := inTree(t, time.Minute, map[int]map[string]string{5: holds(1), 7: holds(5), 8: holds(5), 9: holds(7), 10: holds(1)})
	if !slices.Equal(pids, []int{9, 10}) {
		t.Errorf("held by %v", pids)
	}
}

func TestHoldersNamesNoMoreThanTheLimit(t *testing.T) {
	processes, mounts := map[int]map[string]string{}, hasVolume
	for i := range holdersLimit + 10 {
		processes[100+i] = opens()
		mounts += fmt.Sprintf("%d 1 8:16 / /data%d rw - ext4 /dev/sdb rw\n", 10+i, i)
	}
	processes[100]["mountinfo"] = mounts
	a, pids := inTree(t, time.Minute, processes)
	if len(pids) != holdersLimit || len(a.Superblocks[Number{8, 16}].Mounts) != holdersLimit || !a.Cut {
		t.Errorf("%d processes, %d mounts, cut: %v", len(pids), len(a.Superblocks[Number{8, 16}].Mounts), a.Cut)
	}
}

func TestHoldersInOddProcesses(t *testing.T) {
	for name, tc := range map[string]struct {
		files map[string]string
		holds bool
		cut   bool
	}{
		"holds it":                 {files: opens(), holds: true},
		"kernel thread":            {files: opens("exe", "")},
		"first thread has ended":   {files: opens("exe", "", "task/11/comm", "x\n")},
		"another mount":            {files: opens("fdinfo/3", "mnt_id:\t1\n")},
		"only beneath its root":    {files: map[string]string{"root": "-> /data", "cwd": "-> /data/x", "mountinfo": "2 1 8:16 / / rw - ext4 /dev/sdb rw\n"}, holds: true, cut: true},
		"deleted directory":        {files: map[string]string{"cwd": "-> /data (deleted)", "mountinfo": hasVolume}, holds: true},
		"a name that starts alike": {files: map[string]string{"cwd": "-> /database", "mountinfo": hasVolume}},
		"file of a mount unknown":  {files: map[string]string{"fd/3": "-> /x", "fdinfo/3": "pos:\t0\nmnt_id:\t77\n"}},
		"shared memory":            {files: map[string]string{"fd/3": "-> /memfd:x (deleted)", "fdinfo/3": "mnt_id:\t78\n"}},
	} {
		a, pids := inTree(t, time.Minute, map[int]map[string]string{10: tc.files})
		if (len(pids) == 1) != tc.holds || a.Cut != tc.cut {
			t.Errorf("%s: held by %v, cut: %v", name, pids, a.Cut)
		}
		if want := map[string]int{"file of a mount unknown": 1}[name]; a.Unknown != want {
			t.Errorf("%s: %d unknown", name, a.Unknown)
		}
		if want := map[string]int{"first thread has ended": 1}[name]; a.Unseen != want {
			t.Errorf("%s: %d unseen", name, a.Unseen)
		}
	}
}

func TestHoldersWithoutProcfs(t *testing.T) {
	if _, err := newScan(-1, HoldersQuery{}).run(time.Second); err == nil {
		t.Error("no error: it looks as if nothing were held")
	}
}
