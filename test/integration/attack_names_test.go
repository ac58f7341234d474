package integration

import (
	"strings"
	"testing"

	"github.com/csi-addons/node-healer/test/harness"
)

// TestAttackWithNames has processes of a pod's user take the names of a sandbox's
// processes, or names that make /proc/<pid>/stat read like another process's. No
// verdict changes.
func TestAttackWithNames(t *testing.T) {
	n := harness.NewNode(t).Start()
	u := newUsed(n)
	starts := []func(*harness.Container) *harness.Attacker{(*harness.Container).NewUser, (*harness.Container).NewAttacker}
	for i, name := range []string{
		"qemu-system-x86_64", "virtiofsd", "firecracker", "runsc", "runsc-sandbox", "runsc-gofer", "exe",
		"a) R 1 (b", ") Z 0 0 0 0", "a\nPid:\t1\nb", "\n\n\n", "", " ", "\xff\xfe",
	} {
		starts[i%len(starts)](u.c).Do("name", name)
	}
	for range 2 {
		u.die()
		if message := says(n, "healed", u.Volume); strings.Contains(strings.ToLower(message), "unverified") {
			t.Errorf("the pod looks sandboxed: %q", message)
		}
		u.works()
		says(n, "healthy", u.Volume)
	}
}
