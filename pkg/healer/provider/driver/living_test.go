package driver

import (
	"context"
	"testing"

	"github.com/csi-addons/node-healer/pkg/api/healerpb"
	"github.com/csi-addons/node-healer/pkg/facts"
	"github.com/csi-addons/node-healer/pkg/healer"
	generic "github.com/csi-addons/node-healer/pkg/healer/provider/mounts"
)

type livingHost struct{ generic.Host }

func (livingHost) CanReplace() bool { return true }
func (livingHost) CanCover() bool   { return true }

// A lookup that failed, as any user may make, has no driver heal what works.
func TestNoDelegateOfALivingFilesystem(t *testing.T) {
	f := newFake()
	f.heal = func(context.Context) (*healerpb.NodeHealerResponse, error) {
		return &healerpb.NodeHealerResponse{}, nil
	}
	p := f.serve(t)
	c := healthy()
	for i := range c.MountPoints {
		for j := range c.MountPoints[i].Stack {
			m := &c.MountPoints[i].Stack[j]
			m.FSType, m.Source, m.Root = "fuse.x", "x", "/dir"
		}
	}
	c.Superblocks = map[facts.Dev]healer.Superblock{disk: {Dev: disk, FSType: "fuse.x", Source: "x", Answer: facts.Answer{Asked: true, Op: "statx"}}}
	c.MountPoints[0].Stack[0].RootDeleted = true
	found, err := generic.New(livingHost{}).Examine(c)
	if err != nil {
		t.Fatal(err)
	}
	if len(found.Conditions) != 1 || found.Conditions[0].Reason != healer.StaleFileHandle {
		t.Errorf("%+v", found.Conditions)
	}
	c.Found = found.Conditions
	with := with(c, collect(t, p, c))
	steps, err := p.Examine(with)
	if err != nil {
		t.Fatal(err)
	}
	d := healer.Diagnosis{Case: with, Conditions: found.Conditions, Steps: append(found.Steps, steps.Steps...)}
	for _, s := range d.Offers() {
		t.Errorf("offered: %s at %s for %v", s.Name, s.MountPoint.Path, s.Heals)
	}
}
