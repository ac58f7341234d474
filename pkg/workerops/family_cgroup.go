package workerops

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// cgroupPrefix is how the cgroups of programs are named, with the pid of the worker.
const cgroupPrefix = "node-healer-program-"

// newFamily makes a cgroup for a program, below the worker's own. There is none without
// cgroup v2, where it is read-only, and where the kernel cannot kill one (below Linux
// 5.14).
func newFamily() *family {
	own := ownCgroup()
	if own == "" {
		return &family{}
	}
	removeLeft(own)
	f := &family{cgroup: filepath.Join(own, cgroupPrefix+strconv.Itoa(os.Getpid()))}
	if err := os.Mkdir(f.cgroup, 0o700); err != nil && !errors.Is(err, unix.EEXIST) {
		return &family{}
	}
	if unix.Access(filepath.Join(f.cgroup, "cgroup.kill"), unix.W_OK) != nil {
		_ = unix.Rmdir(f.cgroup)
		return &family{}
	}
	return f
}

// ownCgroup returns the directory of this process's cgroup; empty where there is none. The
// path that the kernel shows is true in one cgroup namespace and the mounts of that one
// only, so the directory has to list this process.
func ownCgroup() string {
	raw, err := os.ReadFile("/proc/thread-self/cgroup")
	if err != nil {
		return ""
	}
	for line := range strings.Lines(string(raw)) {
		path, unified := strings.CutPrefix(strings.TrimSuffix(line, "\n"), "0::")
		if !unified {
			continue
		}
		for _, at := range [...]string{"/sys/fs/cgroup", "/sys/fs/cgroup/unified"} {
			var fs unix.Statfs_t
			dir := filepath.Join(at, path)
			if unix.Statfs(dir, &fs) != nil || fs.Type != unix.CGROUP2_SUPER_MAGIC {
				continue
			}
			members, err := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
			if err == nil && slices.Contains(strings.Fields(string(members)), strconv.Itoa(os.Getpid())) {
				return dir
			}
		}
	}
	return ""
}

// removeLeft kills and removes cgroups whose worker is gone: it was killed, and so was
// the process beside it.
func removeLeft(own string) {
	names, err := readDirNames(own)
	if err != nil {
		return
	}
	for _, name := range names {
		pid, err := strconv.Atoi(strings.TrimPrefix(name, cgroupPrefix))
		if !strings.HasPrefix(name, cgroupPrefix) || err != nil || !errors.Is(unix.Kill(pid, 0), unix.ESRCH) {
			continue
		}
		f := &family{cgroup: filepath.Join(own, name)}
		_ = os.WriteFile(filepath.Join(f.cgroup, "cgroup.kill"), []byte("1"), 0)
		for range 200 { // and no longer: it may wait uninterruptibly
			if f.removeCgroup() {
				break
			}
			time.Sleep(5 * time.Millisecond)
		}
	}
}

// removeCgroup removes the cgroup with those that a program made in it, and returns true
// unless a process is left in it.
func (f *family) removeCgroup() bool {
	if f.cgroup == "" {
		return true
	}
	events, err := os.ReadFile(filepath.Join(f.cgroup, "cgroup.events"))
	if err == nil && !strings.Contains(string(events), "populated 0") {
		return false
	}
	removeCgroups(f.cgroup)
	return true
}

// removeCgroups removes an empty cgroup and those beneath it.
func removeCgroups(dir string) {
	entries, _ := os.ReadDir(dir) // also of one that is gone
	for _, e := range entries {
		if e.IsDir() {
			removeCgroups(filepath.Join(dir, e.Name()))
		}
	}
	_ = unix.Rmdir(dir)
}
