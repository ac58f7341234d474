package harness

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// Cgroup is a control group of a test's own, with one limit.
type Cgroup struct {
	t   testing.TB
	dir string
	// limit is the limit's file.
	limit string
}

// NewCgroup makes a cgroup of a controller (pids or memory) below the one that
// this process is in, or below the nearest above that which hands the controller
// down. Where there is none, the test cannot show what it is about.
func NewCgroup(t testing.TB, controller string) *Cgroup {
	t.Helper()
	NeedsRoot(t)
	limits := map[string][2]string{"pids": {"pids.max", "pids.max"}, "memory": {"memory.limit_in_bytes", "memory.max"}}
	for version, at := range ownCgroups(t, controller) {
		for ; at.dir != ""; at = at.above() {
			c := &Cgroup{t: t, dir: filepath.Join(at.dir, "node-healer-test-"+unique), limit: limits[controller][version]}
			if os.Mkdir(c.dir, 0o755) != nil {
				continue
			}
			if _, err := os.Stat(filepath.Join(c.dir, c.limit)); err == nil {
				t.Cleanup(c.remove)
				return c
			}
			Must(t, os.Remove(c.dir))
		}
	}
	NeedsKernel(t, false, "a cgroup with the controller "+controller)
	return nil
}

// hierarchy is a directory in a hierarchy of cgroups.
type hierarchy struct{ root, dir string }

// above returns the directory above, an empty one for the root.
func (h hierarchy) above() hierarchy {
	if h.dir == h.root {
		return hierarchy{}
	}
	return hierarchy{h.root, filepath.Dir(h.dir)}
}

// ownCgroups returns the directory of this process's cgroup in the hierarchy of
// the controller (version 1), and in the one that all controllers share
// (version 2); empty where there is none.
func ownCgroups(t testing.TB, controller string) (dirs [2]hierarchy) {
	t.Helper()
	raw, err := os.ReadFile("/proc/self/cgroup")
	Must(t, err)
	for line := range strings.Lines(string(raw)) {
		number, rest, _ := strings.Cut(strings.TrimSpace(line), ":")
		controllers, path, _ := strings.Cut(rest, ":")
		for _, m := range Mounts(t, "self") {
			below, err := filepath.Rel(m.Root, path)
			switch {
			case err != nil || strings.HasPrefix(below, ".."):
			case m.FSType == "cgroup2" && number == "0":
				dirs[1] = hierarchy{m.Path, filepath.Join(m.Path, below)}
			case m.FSType == "cgroup" && m.HasSuperOption(controller) && strings.Contains(","+controllers+",", ","+controller+","):
				dirs[0] = hierarchy{m.Path, filepath.Join(m.Path, below)}
			}
		}
	}
	return dirs
}

// Limit sets the limit.
func (c *Cgroup) Limit(n int64) {
	c.t.Helper()
	Must(c.t, os.WriteFile(filepath.Join(c.dir, c.limit), []byte(strconv.FormatInt(n, 10)), 0o600))
}

// Lift takes the limit away.
func (c *Cgroup) Lift() {
	c.t.Helper()
	none := "max"
	if strings.HasSuffix(c.limit, "_in_bytes") {
		none = "-1"
	}
	Must(c.t, os.WriteFile(filepath.Join(c.dir, c.limit), []byte(none), 0o600))
}

// Take moves a process into the cgroup; those that it starts are born there.
func (c *Cgroup) Take(pid int) {
	c.t.Helper()
	Must(c.t, os.WriteFile(filepath.Join(c.dir, "cgroup.procs"), []byte(strconv.Itoa(pid)), 0o600))
}

// Born returns a program that is the given one, from its first moment in the cgroup.
func (c *Cgroup) Born(program string) string {
	c.t.Helper()
	script := filepath.Join(c.t.TempDir(), filepath.Base(program))
	text := fmt.Sprintf("#!/bin/sh\necho $$ >'%s/cgroup.procs' && exec '%s' \"$@\"\n", c.dir, program)
	Must(c.t, os.WriteFile(script, []byte(text), 0o700))
	return script
}

// Peak is the most memory that the cgroup ever had, in bytes.
func (c *Cgroup) Peak() int64 {
	c.t.Helper()
	for _, name := range []string{"memory.peak", "memory.max_usage_in_bytes"} {
		if raw, err := os.ReadFile(filepath.Join(c.dir, name)); err == nil {
			n, err := strconv.ParseInt(strings.TrimSpace(string(raw)), 10, 64)
			Must(c.t, err)
			return n
		}
	}
	return 0
}

// Starved is how many processes the kernel ended because they found no memory
// within the limit.
func (c *Cgroup) Starved() int {
	c.t.Helper()
	for _, name := range []string{"memory.events", "memory.oom_control"} {
		raw, err := os.ReadFile(filepath.Join(c.dir, name))
		if err != nil {
			continue
		}
		for line := range strings.Lines(string(raw)) {
			if count, found := strings.CutPrefix(strings.TrimSpace(line), "oom_kill "); found {
				n, err := strconv.Atoi(count)
				Must(c.t, err)
				return n
			}
		}
	}
	return 0
}

// remove waits for the processes in it to end.
func (c *Cgroup) remove() {
	Eventually(c.t, "the cgroup is empty", func() bool {
		err := os.Remove(c.dir)
		return err == nil || errors.Is(err, fs.ErrNotExist)
	})
}
