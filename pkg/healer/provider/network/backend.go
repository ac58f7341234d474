package network

import (
	"slices"
	"strings"

	"github.com/csi-addons/node-healer/pkg/healer"
	"github.com/csi-addons/node-healer/pkg/host"
	"github.com/csi-addons/node-healer/pkg/mount"
)

// Backend is what several volumes may lie on. It is comparable: equal values are the
// same backend.
type Backend struct {
	kind kind
	// name is the server's, or the filesystem type.
	name   string
	driver string   // of daemons
	dev    host.Dev // of a filesystem
}

type kind string

const (
	// server is the server that a network filesystem names.
	server kind = "server"
	// daemons are the FUSE daemons of one driver. Each has a superblock of its own,
	// and they end together when the pod that runs them ends.
	daemons kind = "FUSE daemons"
	// filesystem is one superblock of which several volumes are parts.
	filesystem kind = "filesystem"
)

// String names the backend in a message.
func (b Backend) String() string {
	name := string(b.kind) + " " + b.name
	switch b.kind {
	case daemons:
		return name + " of driver " + b.driver
	case filesystem:
		return name + " " + b.dev.String()
	case server:
	}
	return name
}

// Health is what one volume shows of a backend. A backend without troubles works.
type Health struct {
	Backend  Backend
	Troubles []Trouble
}

// Trouble is what a volume suffers from because of its backend.
type Trouble struct {
	Status healer.Status
	Reason healer.Reason
}

// Of returns each backend that the volume of a report lies on, once, with what the
// volume suffers from because of it.
func Of(r healer.Report) []Health {
	var found []Health
	health := func(b Backend) *Health {
		at := slices.IndexFunc(found, func(h Health) bool { return h.Backend == b })
		if at < 0 {
			at, found = len(found), append(found, Health{Backend: b})
		}
		return &found[at]
	}
	for _, sb := range r.After.Case.Superblocks {
		health(filesystemOf(sb))
		health(widest(r.Driver, sb))
	}
	for _, c := range r.After.Conditions {
		if c.Reason.Scope() == healer.ScopeMount {
			continue
		}
		for _, sb := range superblocks(r.After.Case, c) {
			h, t := health(blamed(r.Driver, sb, c.Reason)), Trouble{c.Status, c.Reason}
			if !slices.Contains(h.Troubles, t) {
				h.Troubles = append(h.Troubles, t)
			}
		}
	}
	return found
}

// superblocks returns those that a condition is about. A condition at no mount point
// is about all of them.
func superblocks(c healer.Case, cond healer.Condition) []host.Superblock {
	var found []host.Superblock
	mountPoint, _ := c.MountPoint(cond.MountPoint)
	for dev, sb := range c.Superblocks {
		if cond.MountPoint == "" || dev == mountPoint.Dev() {
			found = append(found, sb)
		}
	}
	return found
}

// blamed returns the widest backend that a reason is evidence about.
func blamed(driver string, sb host.Superblock, reason healer.Reason) Backend {
	b := widest(driver, sb)
	switch {
	case b.kind == server && reason.Scope() == healer.ScopeFilesystem,
		b.kind == daemons && reason != healer.Disconnected: // each daemon has storage of its own
		return filesystemOf(sb)
	}
	return b
}

func widest(driver string, sb host.Superblock) Backend {
	if name := mount.Server(sb.FSType, sb.Source); name != "" {
		return Backend{kind: server, name: name}
	}
	if sb.FSType == "fuse" || strings.HasPrefix(sb.FSType, "fuse.") {
		return Backend{kind: daemons, name: sb.FSType, driver: driver}
	}
	return filesystemOf(sb)
}

func filesystemOf(sb host.Superblock) Backend {
	return Backend{kind: filesystem, name: sb.FSType, dev: sb.Dev}
}
