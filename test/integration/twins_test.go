package integration

import (
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// TestDuplicateWithALivingTwin has an interim mount on a bind that shares its
// events, and something alive at the same directory of another mount that
// receives them: the kernel would take that off together with the interim one.
func TestDuplicateWithALivingTwin(t *testing.T) {
	for name, twin := range map[string]func(v *volume) string{
		"on staging": func(v *volume) string { return v.staging },
		"on another bind of it": func(v *volume) string {
			p := filepath.Join(v.node.dir, "elsewhere")
			mkdir(v.node.t, p)
			must(v.node.t, unix.Mount(v.staging, p, "", unix.MS_BIND, ""))
			return p
		},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t, "--standalone").start()
			v := n.newVolume("ext4", "duplicated")
			n.expect("healthy", v.request())
			receiver := twin(v)
			// A slave receives, and what is done on it reaches nobody else.
			must(t, unix.Mount("", receiver, "", unix.MS_SLAVE, ""))
			healthy := len(n.table())
			n.interimOn(v.staging, v.place(podUID))
			if len(n.table()) <= healthy+1 {
				t.Fatal("the duplicate did not propagate: the test shows nothing")
			}
			// The copy that it received makes way for something alive.
			must(t, unix.Unmount(receiver, 0))
			must(t, unix.Mount("stranger", receiver, "tmpfs", 0, "size=1m"))
			before := n.table()
			for range 2 {
				n.expect("abnormal", v.request(), "StackedMounts", "would also take")
				n.sameTable(before)
			}
		})
	}
}
