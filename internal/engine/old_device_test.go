package engine

import (
	"testing"
	"time"

	"github.com/csi-addons/node-healer/internal/node"
	"github.com/csi-addons/node-healer/pkg/facts"
	"github.com/csi-addons/node-healer/pkg/healer"
)

// renumber attaches the disk of the raw block volume under another number.
func (b *fixture) renumber(to facts.Dev) {
	b.devices[to] = b.devices[disk]
	l := b.files[blockMountPoint]
	l.Rdev = to
	b.files[blockMountPoint] = l
	b.answers[facts.Dev{Minor: 5}] = node.Inspection{Kind: facts.KindBlock, ProbeFacts: facts.ProbeFacts{Rdev: to}, Answer: facts.Answer{Asked: true}}
}

// A container has the number that the device had when it started.
func TestContainersOnAnOldDevice(t *testing.T) {
	b := newBlockBench(t)
	v := healer.Volume{ID: volID, Path: blockMountPoint}
	b.running = []facts.Container{{Workload: facts.Workload{PodUID: "uid-a", ContainerID: "before"}}, {Workload: facts.Workload{PodUID: "uid-x", ContainerID: "another pod's"}}}
	if b.heal(v); len(b.walks) != 0 {
		t.Error("it looked for containers of a healthy volume")
	}
	now := facts.Dev{Major: 8, Minor: 32}
	b.renumber(now)
	b.fall(blockMountPoint, healer.ContainerOnOldDevice)
	for range 2 {
		b.heal(v)
		if got := b.last().OnOldDevice; len(got) != 1 || got[0].ContainerID != "before" || got[0].Was != disk || got[0].Now != now {
			t.Errorf("got %+v", got)
		}
		b.running = append(b.running, facts.Container{Workload: facts.Workload{PodUID: "uid-a", ContainerID: "later"}, Started: node.SinceBoot() + time.Second})
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
