package workerops

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/csi-addons/node-healer/pkg/worker"
)

// family is everything that a program started, and itself. All are children of this
// process, sooner or later: it is their subreaper (PR_SET_CHILD_SUBREAPER, prctl(2)), to
// which the kernel gives those whose parent has ended. Where there is cgroup v2 they are
// in a cgroup of their own as well, which the kernel kills whole.
type family struct {
	// cgroup is its directory; empty without one.
	cgroup string
	// ending is held by the one that ends it: for ever, when the server has ended.
	ending sync.Mutex
}

// adopt makes this process the subreaper, and has the family end with the server. Its
// memory has what the program is told.
func (f *family) adopt() error {
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return fmt.Errorf("prctl(PR_SET_DUMPABLE): %w", err)
	}
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("prctl(PR_SET_CHILD_SUBREAPER): %w", err)
	}
	go func() {
		worker.WaitEnd()
		f.ending.Lock()
		f.kill()
		os.Exit(1)
	}()
	return nil
}

// end kills the family until none of it is left. It does not return while one waits
// uninterruptibly in the kernel.
func (f *family) end() {
	f.ending.Lock()
	defer f.ending.Unlock()
	f.kill()
}

func (f *family) kill() {
	const most = 100 * time.Millisecond
	for pause := time.Millisecond; !f.killed(); pause = min(2*pause, most) {
		time.Sleep(pause)
	}
}

// killed kills those that are there now, and returns true when there were none.
func (f *family) killed() bool {
	if f.cgroup != "" {
		// Without it the members are killed as children all the same.
		_ = os.WriteFile(filepath.Join(f.cgroup, "cgroup.kill"), []byte("1"), 0)
	}
	if !reap() {
		killChildren()
		return reap() && f.removeCgroup()
	}
	return f.removeCgroup()
}

// reap reaps the children that have ended, and returns true when there are no others.
func reap() bool {
	for {
		pid, err := unix.Wait4(-1, nil, unix.WNOHANG|unix.WALL, nil)
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return true // ECHILD
		case pid == 0:
			return false
		}
	}
}

func killChildren() {
	names, err := readDirNames("/proc")
	if err != nil {
		return // and tried again
	}
	self := strconv.Itoa(os.Getpid())
	for _, name := range names {
		pid, err := strconv.Atoi(name)
		if err != nil {
			continue
		}
		// proc_pid_stat(5): pid (comm) state ppid; the name may have parentheses in it.
		stat, err := os.ReadFile("/proc/" + name + "/stat")
		if err != nil {
			continue
		}
		fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
		if len(fields) > 1 && fields[1] == self {
			_ = unix.Kill(pid, unix.SIGKILL)
		}
	}
}

func readDirNames(dir string) ([]string, error) {
	f, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return f.Readdirnames(-1)
}
