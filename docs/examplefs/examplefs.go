// Package examplefs is a provider of a FUSE filesystem whose daemon writes two files for each mount.
package examplefs

import (
	"context"
	"strings"
	"time"

	"github.com/csi-addons/node-healer/pkg/healer"
)

var conditions = map[string]healer.Condition{ // by what the health file says
	"lost":     {Status: healer.Inaccessible, Reason: "SessionLost", Acute: true, Message: "the daemon lost its session", Advice: "see the daemon's log"},
	"degraded": {Status: healer.Degraded, Reason: "ReplicaMissing", Message: "the daemon reaches one replica only", Advice: "see the daemon's log"},
}

type provider struct {
	tools   healer.Tools
	dir     string // of the daemon's files
	program string // reconnects a mount
}
type evidence struct{ health, pid string }

// New returns the provider.
func New(tools healer.Tools, dir, program string) healer.Provider {
	return provider{tools, dir, program}
}

func (provider) Name() string { return "examplefs" }

func mine(c healer.Case) (healer.MountPoint, bool) {
	staged, _ := c.Staged()
	return staged, staged.Mounted() && staged.Stack[0].FSType == "fuse.examplefs"
}

func (p provider) Collect(ctx context.Context, c healer.Case) (healer.Evidence, error) {
	staged, ours := mine(c)
	if !ours {
		return nil, nil
	}
	health, err := p.tools.ReadFile(ctx, p.dir, staged.Stack[0].Source+".health", 64)
	pid, _ := p.tools.ReadFile(ctx, p.dir, staged.Stack[0].Source+".pid", 64)
	return evidence{strings.TrimSpace(string(health)), string(pid)}, err
}

func (p provider) Examine(c healer.Case) (healer.Finding, error) {
	staged, ours := mine(c)
	seen, _ := c.Evidence[p.Name()].(evidence)
	cond, sick := conditions[seen.health]
	if !ours || !sick {
		return healer.Finding{Mine: ours}, nil
	}
	cond.MountPoint, cond.Superblock = staged.Path, staged.Dev()
	s := healer.Step{Name: "reconnect", Cost: healer.Reconnect, Heals: []healer.Reason{"SessionLost"}, MountPoint: staged, Source: staged.Dev()}
	s.Run = func(ctx context.Context, revalidate func(context.Context) error) error {
		if err := revalidate(ctx); err != nil {
			return err
		}
		ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
		defer cancel()
		_, err := p.tools.Run(ctx, healer.Program{Path: p.program, OnHost: true, Args: []string{"--mount=" + staged.Stack[0].Source}})
		return err
	}
	if seen.pid == "" {
		s.Run, s.Refused = nil, "there is no pid file, so no daemon that could reconnect"
	}
	return healer.Finding{Mine: true, Conditions: []healer.Condition{cond}, Steps: []healer.Step{s}}, nil
}
