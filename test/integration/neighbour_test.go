package integration

import (
	"github.com/csi-addons/node-healer/test/harness"
)

// neighbour is a healthy volume on the node of a sick one.
type neighbour struct {
	n  *harness.Node
	v  *harness.Volume
	id uint64
}

// newNeighbour makes a neighbour. Everything that a test breaks, it breaks later.
func newNeighbour(n *harness.Node) neighbour {
	n.T.Helper()
	return seeNeighbour(n, n.NewVolume("ext4", "neighbour"))
}

// seeNeighbour has the server see a neighbour healthy.
func seeNeighbour(n *harness.Node, v *harness.Volume) neighbour {
	n.T.Helper()
	n.Expect("healthy", v.Request())
	return neighbour{n: n, v: v, id: harness.MountID(n.T, v.MountPoint())}
}

// untouched fails the test when the neighbour is not healthy, or not published
// by the same mount as before.
func (b neighbour) untouched() {
	b.n.T.Helper()
	b.n.Expect("healthy", b.v.Request())
	if id := harness.MountID(b.n.T, b.v.MountPoint()); id != b.id {
		b.n.T.Errorf("the neighbour's mount %d is now %d", b.id, id)
	}
}
