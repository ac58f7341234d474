package providertest

import (
	"context"
	"fmt"
	"time"

	"github.com/csi-addons/node-healer/pkg/facts"
	"github.com/csi-addons/node-healer/pkg/facts/layout"
	"github.com/csi-addons/node-healer/pkg/healer"
)

// The paths of the volume that Volume makes.
const (
	Target = kubeletRoot + "/pods/8a4c1c52-7bd5-4a50-9a3e-3c8f3a4b5d6e/volumes/kubernetes.io~csi/pvc-1/mount"
	// Staging is where kubelet has a driver of any name stage it.
	Staging = kubeletRoot + "/plugins/kubernetes.io/csi/driver.example/0a1b2c/globalmount"

	kubeletRoot = "/var/lib/kubelet"
	handle      = "vol-1"
)

// A Change changes a case into the one that a test needs: any function does.
type Change = func(*healer.Case)

// Volume returns a function that builds the case of a volume, with the changes. Without
// one the volume is healthy: staged at Staging, published at Target, probed, recorded in
// this boot and named by kubelet's vol_data.json. Its source is "/dev/sdb" with a disk
// behind it for ext4, xfs and the like, "server.example:/vol-1" for NFS, and "vol-1", the
// volume_id, for all others.
func Volume(driver, fsType string, changes ...Change) func() healer.Case {
	return func() healer.Case {
		c := volume(driver, fsType)
		for _, change := range changes {
			change(&c)
		}
		return c
	}
}

func volume(driver, fsType string) healer.Case {
	sb := healer.Superblock{
		Dev: facts.Dev{Minor: 50}, FSType: fsType, Source: handle, Kind: facts.KindDirectory,
		Answer: facts.Answer{Asked: true, Elapsed: time.Millisecond},
		Space:  facts.Space{Blocks: 1 << 20, Available: 1 << 19, Files: 1 << 16, FreeFiles: 1 << 15},
	}
	if facts.IsNFS(fsType) {
		sb.Source = "server.example:/" + handle
	}
	var identity facts.Identity
	if facts.IsType(fsType, facts.Disk) {
		identity = facts.Identity{FilesystemUUID: "3e6be9de-8139-11d1-9106-a43f08d823a6", Serial: "serial-1", Size: 4 << 30}
		sb.Dev, sb.Source = facts.Dev{Major: 8, Minor: 16}, "/dev/sdb"
		sb.Device = &facts.BlockDevice{Dev: sb.Dev, Name: "sdb", DiskSeq: 9, Identity: identity}
	}
	c := healer.Case{
		Volume: healer.Volume{ID: handle, Path: Target, StagingPath: Staging},
		Driver: driver,
		BootID: "5d0e2a43-3f0b-4a0e-9c57-0b6a0c3b2f10", BootTime: time.Unix(1_700_000_000, 0),
		Superblocks: map[facts.Dev]healer.Superblock{sb.Dev: sb},
		Newest:      1002,
	}
	c.Record = &healer.Record{
		Version: healer.RecordVersion, Driver: driver, VolumeID: handle, BootID: c.BootID,
		FSType: fsType, Source: sb.Source, Identity: identity, Newest: c.Newest,
		LastSeen: c.BootTime.Add(time.Hour),
	}
	if sb.Device != nil {
		c.Record.DiskSeq = sb.Device.DiskSeq
	}
	for i, path := range []string{Target, Staging} {
		p := mountPoint(c, sb, path, uint64(1002-i))
		c.MountPoints = append(c.MountPoints, p)
		r := healer.MountPointRecord{
			Role: p.Role, Path: path, Root: "/", Dev: sb.Dev, MountID: p.Stack[0].ID, HadBlocks: true, HadInodes: true,
		}
		if facts.IsNFS(fsType) {
			r.Source = sb.Source
		}
		c.Record.MountPoints = append(c.Record.MountPoints, r)
	}
	for i := range c.MountPoints {
		c.MountPoints[i].Want = &c.Record.MountPoints[i]
	}
	return c
}

func mountPoint(c healer.Case, sb healer.Superblock, path string, id uint64) healer.MountPoint {
	parsed := layout.Kubelet{Root: kubeletRoot}.Layout(path)
	role := healer.RoleTarget
	if parsed.Kind == layout.Staging {
		role = healer.RoleStaging
	}
	return healer.MountPoint{
		Role: role, Path: path, Named: true, Proven: true, PodUID: parsed.PodUID, Layout: parsed,
		Stack: []facts.Mount{{
			ID: id, OldID: int(id), OldParent: 1, Dev: sb.Dev, Root: "/", Path: path, FSType: sb.FSType, Source: sb.Source,
		}},
		Inspect: facts.PathInfo{
			Inspected: true, Kind: facts.KindDirectory,
			VolData: &facts.VolData{DriverName: c.Driver, VolumeHandle: handle},
		},
	}
}

// Collect puts the evidence into the case that a provider gets of its tools, as the
// engine does. The provider is a healer.Collector.
func Collect(p healer.Provider) Change {
	return func(c *healer.Case) {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		e, err := p.(healer.Collector).Collect(ctx, *c)
		if err != nil {
			panic(fmt.Sprintf("Collect of %s: %v", p.Name(), err))
		}
		c.Evidence = map[string]healer.Evidence{p.Name(): e}
	}
}

// Superblock changes what is known of the filesystem.
func Superblock(change func(*healer.Superblock)) Change {
	return func(c *healer.Case) { eachSuperblock(c, change) }
}

// Unrecorded is a volume that was never seen healthy.
func Unrecorded() Change {
	return func(c *healer.Case) {
		c.Record = nil
		eachMountPoint(c, func(p *healer.MountPoint) { p.Want = nil })
	}
}
