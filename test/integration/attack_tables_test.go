package integration

import (
	"bytes"
	"fmt"
	"os"
	"regexp"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/csi-addons/node-healer/test/harness"
)

// TestAttackWithTables has a pod's user make mount tables that are expensive to read:
// a line longer than 1 MiB, or very many mounts. All kinds of heals still work, for
// the pod's own volume too, within the memory limit of the manifest.
func TestAttackWithTables(t *testing.T) {
	const limit = 512 << 20
	for name, attack := range map[string]func(t *testing.T, a *harness.Attacker){
		"a long line": longLine, "many mounts": manyMounts,
	} {
		t.Run(name, func(t *testing.T) {
			memory := harness.NewCgroup(t, "memory")
			n := harness.NewNode(t, "--standalone").Start()
			memory.Limit(limit)
			memory.Take(n.PID())
			next := newNeighbour(n)
			lost := n.NewVolume("ext4", "loses its mount")
			n.Expect("healthy", lost.Request())
			other := newServed(n, "of another pod").known()
			u := newUsed(n)
			attack(t, attackIn(u.c))
			for range 2 {
				before := n.Table()
				lost.Unpublish()
				says(n, "healed", lost, "rebind")
				n.SameTable(before)
				other.die()
				says(n, "healed", other.Volume, "replace")
				u.die()
				says(n, "healed", u.Volume, "replace-in-container")
				if after := n.Table(); !slices.Equal(unnumbered(before), unnumbered(after)) {
					t.Errorf("the mount table was\n%q\nand is\n%q", before, after)
				}
				u.reads()
				for _, v := range []*harness.Volume{lost, other.Volume, u.Volume} {
					says(n, "healthy", v)
				}
				next.untouched()
			}
			s, live := buried(t, n)
			says(n, "healed", s.Volume, "unmount-dead-top")
			s.back()
			if got := harness.MountID(t, s.MountPoint()); got != live {
				t.Errorf("the live mount %d became %d", live, got)
			}
			if starved := memory.Starved(); starved > 0 {
				t.Errorf("%d processes found no memory within the limit", starved)
			}
		})
	}
}

// anonymousDevice is the number of a filesystem without a device, which another
// one may have got meanwhile.
var anonymousDevice = regexp.MustCompile(` 0:\d+ `)

// unnumbered returns a mount table without such numbers.
func unnumbered(table []string) []string {
	lines := make([]string, len(table))
	for i, line := range table {
		lines[i] = anonymousDevice.ReplaceAllString(line, " - ")
	}
	slices.Sort(lines)
	return lines
}

// longLine has the attacker mount what takes more than a MiB to describe.
func longLine(t *testing.T, a *harness.Attacker) {
	t.Helper()
	err := a.Try(0, "overlay", hoard)
	harness.NeedsKernel(t, err == nil, fmt.Sprintf("an overlay with long names (Linux 6.13): %v", err))
	table, err := os.ReadFile(fmt.Sprintf("/proc/%d/mountinfo", a.PID()))
	harness.Must(t, err)
	if !slices.ContainsFunc(bytes.Split(table, []byte("\n")), func(line []byte) bool { return len(line) > 1<<20 }) {
		t.Fatal("no line is that long: the test shows nothing")
	}
}

// manyMounts has the attacker mount as much as fits into a namespace, and copy that.
func manyMounts(t *testing.T, a *harness.Attacker) {
	t.Helper()
	const doublings, namespaces = 16, 12
	a.Mount(evil, hoard, "tmpfs", 0)
	for i := range doublings {
		a.Do("mkdir", hoarded(i))
	}
	for i := range doublings {
		a.Mount(hoard, hoarded(i), "", unix.MS_BIND|unix.MS_REC)
	}
	for range namespaces - 1 {
		a.Do("copy")
	}
}
