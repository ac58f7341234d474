package integration

import (
	"fmt"
	"os"
	"testing"

	"github.com/csi-addons/node-healer/test/harness"
	"github.com/csi-addons/node-healer/test/harness/faultfs"
)

// TestAttackWithLockedMappings has processes in a pod whose command line cannot be
// read as long as a volume does not answer. One has the name of gVisor's processes,
// one that of a hypervisor, one is in namespaces of its own. They delay neither other
// volumes nor the end of the server, and no call leaves a process behind.
func TestAttackWithLockedMappings(t *testing.T) {
	n := harness.NewNode(t, "--probe-timeout=3s").Start()
	s := newServed(n, "heals")
	hung, daemon := n.NewFUSEVolume("hangs", faultfs.Config{})
	other := newServed(n, "heals, too")
	u := s.usedBy(harness.ContainerSpec{Name: "attacked", Mounts: []harness.ContainerMount{
		{At: "/data", Source: s.MountPoint()}, {At: "/hung", Source: hung.MountPoint()},
	}})
	beside := other.usedBy(harness.ContainerSpec{Name: "beside", Mounts: []harness.ContainerMount{
		{At: "/data", Source: other.MountPoint()},
	}})
	n.Expect("healthy", hung.Request())
	s.known()
	attackers := []*harness.Attacker{u.c.NewUser(), u.c.NewUser(), u.c.NewAttacker()}
	for i, name := range []string{"exe", "qemu-system-x86_64", "exe"} {
		attackers[i].Do("name", name)
		attackers[i].Do("map", "/hung/a")
	}
	daemon.Hang()
	t.Cleanup(daemon.Abort) // before the containers are to end
	for _, a := range attackers {
		a.LockMappings()
	}
	heal := func() {
		t.Helper()
		s.die()
		other.die()
		says(n, "healed", s.Volume)
		says(n, "healed", other.Volume)
		u.reads()
		beside.reads()
		says(n, "healthy", s.Volume)
		says(n, "healthy", other.Volume)
		if t.Failed() {
			t.FailNow() // every further call would take as long
		}
	}
	heal()
	says(n, "abnormal", hung, "NotResponding")
	// Go makes threads while system calls wait for a processor, and keeps them.
	harness.Eventually(t, "heals cost less than a thread each", func() bool {
		const rounds = 3
		before := threads(t, n)
		for range rounds {
			heal()
		}
		return threads(t, n) < before+2*rounds
	})
	n.Stop()
}

// threads is how many threads the server has.
func threads(t testing.TB, n *harness.Node) int {
	t.Helper()
	tasks, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", n.PID()))
	harness.Must(t, err)
	return len(tasks)
}
