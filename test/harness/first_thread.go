package harness

import (
	"fmt"
	"os"
	"strconv"
)

// Thread is the directory in procfs of a thread of the container's first process that
// lives. Where that has ended its first thread (Firstless), no other shows what the
// process has.
func (c *Container) Thread() string {
	t := c.node.T
	t.Helper()
	dir := ""
	Eventually(t, "the container's process has ended its first thread and lives", func() bool {
		tasks := fmt.Sprintf("/proc/%d/task", c.pid)
		if _, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/mnt", c.pid)); !os.IsNotExist(err) {
			return false
		}
		threads, err := os.ReadDir(tasks)
		Must(t, err)
		for _, thread := range threads {
			if dir = tasks + "/" + thread.Name(); thread.Name() != strconv.Itoa(c.pid) {
				return true
			}
		}
		return false
	})
	return dir
}
