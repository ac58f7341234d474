package driver

import (
	"context"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/csi-addons/node-healer/pkg/api/healerpb"
	"github.com/csi-addons/node-healer/pkg/facts"
	"github.com/csi-addons/node-healer/pkg/healer"
)

// Only a disk can be another node's.
func TestDelegateWritesToADisk(t *testing.T) {
	record := func(r healer.Record) func(*healer.Case) { return func(c *healer.Case) { c.Record = &r } }
	mounted := func(fsType string) func(*healer.Case) {
		return func(c *healer.Case) {
			c.MountPoints[1].Stack = []facts.Mount{{Dev: disk, Path: staged, FSType: fsType}}
		}
	}
	for name, tc := range map[string]struct {
		change func(*healer.Case)
		writes bool
	}{
		"nothing known":     {func(*healer.Case) {}, true},
		"no record":         {func(c *healer.Case) { c.Record = nil }, true},
		"recorded ext4":     {record(healer.Record{FSType: "ext4"}), true},
		"recorded nfs":      {record(healer.Record{FSType: "nfs4"}), false},
		"recorded disk":     {record(healer.Record{FSType: "fuse.x", Identity: facts.Identity{Serial: "s"}}), true},
		"an unknown type":   {record(healer.Record{FSType: "newfs"}), true},
		"mounted fuse":      {mounted("fuse.x"), false},
		"mounted fuseblk":   {mounted("fuseblk"), true},
		"mounted elsewhere": {func(c *healer.Case) { c.MountPoints[1].Stack = []facts.Mount{{Dev: disk, Path: "/", FSType: "nfs"}} }, true},
		"raw block":         {func(c *healer.Case) { mounted("fuse.x")(c); c.Block = true }, true},
		"a device": {func(c *healer.Case) {
			mounted("fuse.x")(c)
			c.Superblocks = map[facts.Dev]healer.Superblock{disk: {Dev: disk, Answer: facts.Answer{Asked: true}, Device: &facts.BlockDevice{}}}
		}, true},
		"a disk beneath": {func(c *healer.Case) {
			mounted("tmpfs")(c)
			c.MountPoints[1].Stack = append(c.MountPoints[1].Stack, facts.Mount{Dev: facts.Dev{Major: 8}, Path: staged, FSType: "xfs"})
		}, true},
	} {
		t.Run(name, func(t *testing.T) {
			c := lost()
			c.MountPoints[1].Stack = nil
			tc.change(&c)
			steps := newFake().serve(t).steps(c, addonsAt)
			if len(steps) != 1 || steps[0].Writes != tc.writes {
				t.Errorf("%+v", steps)
			}
		})
	}
}

// The driver learns how the volume is used, and no mount flag.
func TestDelegateSaysHowTheVolumeIsUsed(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(*healer.Case)
		block  bool
		fsType string
	}{
		"unknown": {func(*healer.Case) {}, false, ""},
		"filesystem": {func(c *healer.Case) {
			c.Volume.Capability = &healer.Capability{AccessMode: "SINGLE_NODE_WRITER", Access: healer.AccessMount, FSType: "xfs"}
		}, false, "xfs"},
		"raw block": {func(c *healer.Case) {
			c.Volume.Capability = &healer.Capability{AccessMode: "MULTI_NODE_MULTI_WRITER", Access: healer.AccessBlock}
		}, true, ""},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFake()
			f.heal = func(context.Context) (*healerpb.NodeHealerResponse, error) {
				return &healerpb.NodeHealerResponse{}, nil
			}
			c := lost()
			tc.change(&c)
			p := f.serve(t)
			p.cfg.StepTimeout = patience
			if err := delegateOf(t, p, c).Run(t.Context(), allowed); err != nil {
				t.Fatal(err)
			}
			got := f.healed.GetVolumeCapability()
			_, mount := got.GetAccessType().(*csi.VolumeCapability_Mount)
			if (got.GetBlock() != nil) != tc.block || mount != (name == "filesystem") || got.GetMount().GetFsType() != tc.fsType || len(got.GetMount().GetMountFlags()) > 0 ||
				mount != (got.GetAccessMode().GetMode() == csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER) {
				t.Errorf("%+v", got)
			}
		})
	}
}
