package harness

import (
	"fmt"
	"slices"
	"sort"
	"strconv"
	"strings"

	"github.com/csi-addons/node-healer/pkg/facts"
)

// Mounts returns the mount table of the container. It touches no mount.
func (c *Container) Mounts() []facts.Mount {
	c.node.T.Helper()
	return Mounts(c.node.T, strconv.Itoa(c.pid))
}

// MountsAt returns the mounts that stand at a path of the container.
func (c *Container) MountsAt(path string) []facts.Mount {
	c.node.T.Helper()
	return layersOf(c.node.T, strconv.Itoa(c.pid), path)
}

// Table returns the container's mount table, one line for each mount, without
// the numbers that change with every mount: the ids, those of peer groups, and
// the device of a filesystem that has none.
func (c *Container) Table() []string {
	c.node.T.Helper()
	all := c.Mounts()
	at := map[int]string{}
	for _, m := range all {
		at[m.OldID] = m.Path
	}
	var lines []string
	for _, m := range all {
		dev := m.Dev.String()
		if m.Dev.Major == 0 {
			dev = "0"
		}
		lines = append(lines, fmt.Sprintf("%s on %q %s %s %s %s %s %v shared=%v slave=%v",
			m.Path, at[m.OldParent], m.Root, dev, m.Attr, m.FSType, m.Source, anonymous(m.SuperOptions), m.Propagation.Shared != 0, m.Propagation.Master != 0))
	}
	sort.Strings(lines)
	return lines
}

// anonymous leaves out the options that name a connection.
func anonymous(options []string) []string {
	return slices.DeleteFunc(slices.Clone(options), func(o string) bool { return strings.HasPrefix(o, "fd=") })
}

// SameTable fails the test when the container's mount table is not as it was.
func (c *Container) SameTable(before []string) {
	c.node.T.Helper()
	if after := c.Table(); !slices.Equal(before, after) {
		c.node.T.Fatalf("the container's mount table changed\nbefore:\n%s\nafter:\n%s", strings.Join(before, "\n"), strings.Join(after, "\n"))
	}
}
