package fuse

import (
	"cmp"
	"context"
	"testing"
	"time"

	"github.com/csi-addons/node-healer/pkg/facts"
	"github.com/csi-addons/node-healer/pkg/healer"
)

const (
	staged    = "/k/staged"
	published = "/k/pods/a/mount"
)

var served = facts.Dev{Minor: 52}

// node is a host with one daemon.
type node struct {
	daemons facts.FUSEDaemons
	err     error
	// waiting is what each call returns, the last one again and again.
	waiting []int
	// mayAbort is the answer of MayAbortFUSE.
	mayAbort error
	asked    int
	aborted  []facts.AbortPlan
}

func (n *node) FUSEDaemons(_ context.Context, dev facts.Dev) (facts.FUSEDaemons, error) {
	n.asked++
	if dev != served {
		return facts.FUSEDaemons{}, nil
	}
	return n.daemons, n.err
}

func (n *node) FUSEWaiting(ctx context.Context, _ facts.Dev) int {
	if ctx.Err() != nil {
		return -1
	}
	w := n.waiting[0]
	if len(n.waiting) > 1 {
		n.waiting = n.waiting[1:]
	}
	return w
}

func (n *node) MayAbortFUSE(ctx context.Context, _ facts.AbortPlan) error {
	return cmp.Or(ctx.Err(), n.mayAbort)
}

func (n *node) AbortFUSE(ctx context.Context, plan facts.AbortPlan, revalidate func(context.Context) error) error {
	if err := revalidate(ctx); err != nil {
		return err
	}
	n.aborted = append(n.aborted, plan)
	return nil
}

// rclone is a daemon that lives.
func rclone() facts.FUSEDaemon {
	return facts.FUSEDaemon{PID: 4711, Command: "rclone", State: 'S', Started: time.Hour, Workload: facts.Workload{PodUID: "p-1", ContainerID: "abcdef0123456789"}}
}

// healthy is a FUSE volume, staged and published.
func healthy() healer.Case {
	mount := func(path string, id uint64) facts.Mount {
		return facts.Mount{ID: id, OldID: int(id), Dev: served, Root: "/", Path: path, FSType: "fuse.rclone", Source: "bucket"}
	}
	return healer.Case{
		Volume: healer.Volume{ID: "v", Path: published, StagingPath: staged}, Driver: "d", BootTime: time.Unix(1e9, 0),
		Superblocks: map[facts.Dev]healer.Superblock{served: {Dev: served, FSType: "fuse.rclone", Answer: facts.Answer{Asked: true}}},
		MountPoints: []healer.MountPoint{
			{Role: healer.RoleTarget, Path: published, Named: true, Proven: true, PodUID: "a", Stack: []facts.Mount{mount(published, 8)}},
			{Role: healer.RoleStaging, Path: staged, Proven: true, Stack: []facts.Mount{mount(staged, 7)}},
		},
		Dormant: []healer.MountPointRecord{{Path: "/k/pods/b/mount"}},
	}
}

// answers returns the healthy case with another answer.
func answers(a facts.Answer) healer.Case {
	c := healthy()
	sb := c.Superblocks[served]
	sb.Answer = a
	c.Superblocks[served] = sb
	return c
}

// lookedUp returns the healthy case with what the daemon says of a name.
func lookedUp(l facts.Lookup) healer.Case {
	c := healthy()
	sb := c.Superblocks[served]
	sb.Lookup = l
	c.Superblocks[served] = sb
	return c
}

// silent returns the case of a daemon that does not answer.
func silent() healer.Case { return owes(time.Unix(100, 0)) }

// owes returns the case of a daemon that has not answered a call since it began; zero for
// a call that has ended.
func owes(began time.Time) healer.Case {
	return answers(facts.Answer{Asked: true, TimedOut: true, Stuck: !began.IsZero(), Outstanding: began, Elapsed: 5 * time.Second})
}

// seen returns a case with what was found out about its connection.
func seen(c healer.Case, of connection) healer.Case {
	c.Evidence = map[string]healer.Evidence{"fuse": evidence{served: of}}
	return c
}

func examine(t *testing.T, p *Provider, c healer.Case) healer.Finding {
	t.Helper()
	f, err := p.Examine(c)
	if err != nil || !f.Mine {
		t.Fatalf("mine: %v, %v", f.Mine, err)
	}
	return f
}

// collect asks, and examines.
func collect(t *testing.T, p *Provider, c healer.Case) healer.Finding {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	got, err := p.Collect(ctx, c)
	if err != nil {
		t.Fatal(err)
	}
	if got != nil {
		c.Evidence = map[string]healer.Evidence{p.Name(): got}
	}
	return examine(t, p, c)
}
