package host

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// shell returns a program that runs a script.
func shell(script string) Program {
	return Program{Path: "/bin/sh", Args: []string{"-c", script}, Limit: 4096, OnHost: true}
}

func within(t *testing.T, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), d)
	t.Cleanup(cancel)
	return ctx
}

// doubleForks is a program whose grandchild has a session of its own, and writes a file
// actsAfter it began. The program goes on with a script.
func doubleForks(file, script string) Program {
	const grandchild = `(setsid sh -c "echo run > %[1]s.began; sleep %[2]g; echo acted > %[1]s" &); %[3]s`
	return shell(fmt.Sprintf(grandchild, file, actsAfter.Seconds(), script))
}

const (
	actsAfter = 600 * time.Millisecond
	forLong   = "sleep 60"
)

// began waits until the grandchild of doubleForks has begun.
func began(t *testing.T, file string) {
	t.Helper()
	for range 1000 {
		if exists(file + ".began") {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Fatal(file, " never began")
}

// everyWay runs a test with a cgroup for each program, and without cgroups.
func everyWay(t *testing.T, test func(t *testing.T, cgroups bool)) {
	t.Helper()
	needsCgroups(t)
	t.Run("cgroup", func(t *testing.T) { test(t, true) })
	t.Run("subreaper", func(t *testing.T) {
		// What a worker sees where cgroup v2 is not mounted.
		done(t, unix.Mount("none", "/sys/fs/cgroup", "tmpfs", 0, ""))
		t.Cleanup(func() { done(t, unix.Unmount("/sys/fs/cgroup", unix.MNT_DETACH)) })
		test(t, false)
	})
}

func needsCgroups(t *testing.T) {
	t.Helper()
	realKernel(t)
	switch dir := ownCgroup(t); {
	case unix.Access(dir, unix.W_OK) == nil:
	case os.Getenv("CI") != "":
		t.Fatal("needs cgroup v2, and in CI a test that would skip fails")
	default:
		t.Skip("needs cgroup v2")
	}
}

// ownCgroup returns the directory of this process in cgroup v2.
func ownCgroup(t *testing.T) string {
	t.Helper()
	raw, err := os.ReadFile("/proc/self/cgroup")
	done(t, err)
	_, own, _ := strings.Cut("\n"+string(raw), "\n0::")
	own, _, _ = strings.Cut(own, "\n")
	if exists("/sys/fs/cgroup/unified") {
		return "/sys/fs/cgroup/unified" + own
	}
	return "/sys/fs/cgroup" + own
}

// noneLeft waits until no process has the directory in its arguments, and no program's
// cgroup is left.
func noneLeft(t *testing.T, root string) {
	t.Helper()
	var left []string
	for range 100 {
		left = nil
		cgroups, _ := filepath.Glob(ownCgroup(t) + "/node-healer-program-*")
		for _, cgroup := range cgroups {
			_, worker, _ := strings.Cut(cgroup, "program-")
			if pid, _ := strconv.Atoi(worker); errors.Is(unix.Kill(pid, 0), unix.ESRCH) { // not of another test
				left = append(left, cgroup)
			}
		}
		for _, pid := range pids(t) {
			raw, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
			if strings.Contains(string(raw), root) {
				left = append(left, string(raw))
			}
		}
		if len(left) == 0 {
			return
		}
		time.Sleep(20 * time.Millisecond)
	}
	t.Errorf("left: %q", left)
}

func pids(t *testing.T) (all []int) {
	t.Helper()
	entries, err := os.ReadDir("/proc")
	done(t, err)
	for _, e := range entries {
		if pid, err := strconv.Atoi(e.Name()); err == nil {
			all = append(all, pid)
		}
	}
	return all
}

// childOf returns the only process whose parent has the pid.
func childOf(t *testing.T, parent int) int {
	t.Helper()
	var children []int
	for _, pid := range pids(t) {
		raw, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
		if strings.Contains(string(raw), fmt.Sprintf("PPid:\t%d\n", parent)) {
			children = append(children, pid)
		}
	}
	if len(children) != 1 {
		t.Fatalf("the children of %d are %v", parent, children)
	}
	return children[0]
}

// workerOf returns the only worker of this test.
func workerOf(t *testing.T) int {
	t.Helper()
	return childOf(t, syscall.Getpid())
}
