package healer

import (
	"testing"
	"time"

	"github.com/csi-addons/node-healer/internal/ops"
	"github.com/csi-addons/node-healer/pkg/host"
)

// renumber attaches the disk of the raw block volume under another number.
func (b *fixture) renumber(to host.Dev) {
	b.devices[to] = b.devices[disk]
	l := b.files[blockMountPoint]
	l.Rdev = to
	b.files[blockMountPoint] = l
	b.answers[host.Dev{Minor: 5}] = host.Inspection{Kind: host.KindBlock, ProbeFacts: ops.ProbeFacts{Rdev: to}, Answer: host.Answer{Asked: true}}
}

// A container has the number that the device had when it started.
func TestContainersOnAnOldDevice(t *testing.T) {
	b := newBlockBench(t)
	v := Volume{ID: volID, Path: blockMountPoint}
	b.running = []host.Container{{Workload: host.Workload{PodUID: "uid-a", ContainerID: "before"}}, {Workload: host.Workload{PodUID: "uid-x", ContainerID: "another pod's"}}}
	if b.heal(v); len(b.walks) != 0 {
		t.Error("it looked for containers of a healthy volume")
	}
	now := host.Dev{Major: 8, Minor: 32}
	b.renumber(now)
	b.fall(blockMountPoint, ContainerOnOldDevice)
	for range 2 {
		b.heal(v)
		if got := b.last().OnOldDevice; len(got) != 1 || got[0].ContainerID != "before" || got[0].Was != disk || got[0].Now != now {
			t.Errorf("got %+v", got)
		}
		b.running = append(b.running, host.Container{Workload: host.Workload{PodUID: "uid-a", ContainerID: "later"}, Started: host.SinceBoot() + time.Second})
	}
	if r, _ := b.notes.Load(driver, volID); r.MountPoints[0].Dev != disk {
		t.Errorf("the record has %+v", r.MountPoints)
	}
	b.running = b.running[1:]
	b.recover(blockMountPoint)
	if b.heal(v); len(b.last().OnOldDevice) != 0 {
		t.Errorf("got %+v", b.last().OnOldDevice)
	}
	if r, _ := b.notes.Load(driver, volID); r.MountPoints[0].Dev != now {
		t.Errorf("the record has %+v", r.MountPoints)
	}
}
