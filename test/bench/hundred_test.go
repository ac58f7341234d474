package bench

import (
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/csi-addons/node-healer/test/harness"
	"github.com/csi-addons/node-healer/test/harness/faultfs"
)

// hundred is 100 volumes that can be made to hang, each with a FUSE daemon of
// its own.
type hundred struct {
	faults   []*faultfs.FS
	requests [][]byte
}

func newHundred(n *harness.Node) *hundred {
	n.T.Helper()
	h := &hundred{}
	for i := range 100 {
		v, f := n.NewFUSEVolume(fmt.Sprintf("fuse-%03d", i), faultfs.Config{})
		h.faults = append(h.faults, f)
		h.requests = append(h.requests, encode(n.T, v.Request()))
	}
	return h
}

// hang makes all of them hang. Who waits for one half cannot be killed, as their
// daemons have read the requests; who waits for the other half can.
func (h *hundred) hang() {
	for i, f := range h.faults {
		if i%2 == 0 {
			f.Hang()
		} else {
			f.Stop()
		}
	}
}

// recover makes all of them answer again.
func (h *hundred) recover() {
	for i, f := range h.faults {
		if i%2 == 0 {
			f.Lift()
		} else {
			f.Continue()
		}
	}
}

// newTmpfs makes a healthy volume without a disk.
func newTmpfs(n *harness.Node, id string) *harness.Volume {
	n.T.Helper()
	return n.NewStagedVolume("tmpfs", id, func(staging string) {
		harness.Must(n.T, unix.Mount("tmpfs", staging, "tmpfs", unix.MS_NOSUID, "size=4m"))
	})
}
