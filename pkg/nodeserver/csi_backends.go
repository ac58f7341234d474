package nodeserver

import (
	"slices"
	"strings"

	"github.com/csi-addons/node-healer/pkg/healer"
	"github.com/csi-addons/node-healer/pkg/host"
)

// backend is what several volumes may lie on.
type backend struct {
	kind backendKind
	// name is the server's, or the filesystem type.
	name   string
	driver string   // of daemons
	dev    host.Dev // of a superblock
}

type backendKind string

const (
	// kindServer: the server that a network filesystem names.
	kindServer backendKind = "server"
	// kindDaemons: the FUSE daemons of one driver. Each has a superblock of its
	// own, and they go together when the pod that they run in goes.
	kindDaemons backendKind = "FUSE daemons"
	// kindSuperblock: one mounted filesystem of which several volumes are parts.
	kindSuperblock backendKind = "filesystem"
)

// String names a backend in a message.
func (b backend) String() string {
	name := string(b.kind) + " " + b.name
	switch b.kind {
	case kindDaemons:
		return name + " of driver " + b.driver
	case kindSuperblock:
		return name + " " + b.dev.String()
	case kindServer:
	}
	return name
}

// ofMounts are the reasons that speak of how one volume is mounted, and not of
// what it lies on.
var ofMounts = []healer.Reason{
	healer.NotMounted, healer.StagingNotMounted, healer.WrongVolumeMounted, healer.StackedMounts,
	healer.ReadOnlyFilesystem, healer.NotABlockDevice, healer.StaleInContainers, healer.ContainerUnverified,
	healer.ContainerOnBareDirectory, healer.ContainerKeptPlaceholder, healer.ContainerOnOldDevice, healer.TargetNotEmpty,
}

// ofOneFilesystem are the reasons that say nothing of another filesystem of the
// same server.
var ofOneFilesystem = []healer.Reason{healer.OutOfSpace, healer.OutOfInodes, healer.FilesystemErrors}

// backendsOf tells what a volume lies on, and what it suffers from there.
func backendsOf(r healer.Report) []backendSeen {
	var found []backendSeen
	the := func(b backend) *backendSeen {
		at := slices.IndexFunc(found, func(s backendSeen) bool { return s.backend == b })
		if at < 0 {
			at, found = len(found), append(found, backendSeen{backend: b})
		}
		return &found[at]
	}
	for _, sb := range r.After.Case.Superblocks {
		the(superblockOf(sb))
		the(backendOf(r.Driver, sb))
	}
	for _, c := range r.After.Conditions {
		if slices.Contains(ofMounts, c.Reason) {
			continue
		}
		for _, sb := range superblocksOf(r.After.Case, c) {
			b, t := the(blamed(r.Driver, sb, c.Reason)), trouble{c.Status, c.Reason}
			if !slices.Contains(b.troubles, t) {
				b.troubles = append(b.troubles, t)
			}
		}
	}
	return found
}

// superblocksOf gives those that a condition is about: one at no mount point is about
// them all.
func superblocksOf(c healer.Case, cond healer.Condition) []host.Superblock {
	var found []host.Superblock
	mountPoint, _ := c.MountPoint(cond.MountPoint)
	for dev, sb := range c.Superblocks {
		if cond.MountPoint == "" || dev == mountPoint.Dev() {
			found = append(found, sb)
		}
	}
	return found
}

// blamed is the widest backend of which a reason tells.
func blamed(driver string, sb host.Superblock, reason healer.Reason) backend {
	b := backendOf(driver, sb)
	switch {
	case b.kind == kindServer && slices.Contains(ofOneFilesystem, reason):
		return superblockOf(sb)
	case b.kind == kindDaemons && reason != healer.Disconnected:
		return superblockOf(sb) // each daemon has storage of its own
	}
	return b
}

func superblockOf(sb host.Superblock) backend {
	return backend{kind: kindSuperblock, name: sb.FSType, dev: sb.Dev}
}

func backendOf(driver string, sb host.Superblock) backend {
	if server := serverOf(sb.FSType, sb.Source); server != "" {
		return backend{kind: kindServer, name: server}
	}
	if sb.FSType == "fuse" || strings.HasPrefix(sb.FSType, "fuse.") {
		return backend{kind: kindDaemons, name: sb.FSType, driver: driver}
	}
	return superblockOf(sb)
}

// serverOf gives the server in the source of a network filesystem, as it is
// written there; empty for others.
func serverOf(fsType, source string) string {
	before := func(mark string) string {
		server, _, found := strings.Cut(source, mark)
		if !found {
			return ""
		}
		return server
	}
	switch fsType {
	case "nfs", "nfs4": // HOST:/PATH (nfs(5))
		return before(":/")
	case "cifs", "smb3": // //HOST/SHARE (mount.cifs(8))
		server, _, _ := strings.Cut(strings.TrimPrefix(source, "//"), "/")
		return server
	case "ceph": // NAME@FSID.FS=/PATH, or MON,MON:/PATH (mount.ceph(8))
		if user := before("=/"); user != "" {
			return user[strings.IndexByte(user, '@')+1:]
		}
		return before(":/")
	}
	return ""
}
