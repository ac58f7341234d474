package setup

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/csi-addons/node-healer/internal/cluster"
	"github.com/csi-addons/node-healer/pkg/healer"
	"github.com/csi-addons/node-healer/pkg/nodeserver"
)

// loopTimeout leaves the API its share of the time, also when the loop hangs.
const loopTimeout = time.Second

// status says what a person asks first: what runs here, what it may do, and what it has to do.
func (p *Parts) status(ctx context.Context, c *cluster.Cluster, states func(context.Context) healer.LoopState) []nodeserver.StatusLine {
	asking, cancel := context.WithTimeout(ctx, loopTimeout)
	defer cancel()
	loop := states(asking)
	mode := "heal"
	switch {
	case p.cfg.Off:
		mode = "off"
	case p.cfg.CheckOnly:
		mode = "check"
	}
	if p.cfg.DryRun {
		mode += ", dry run: nothing is changed"
	}
	does := "off: the node checks nothing by itself"
	if loop.On {
		does = loop.Action + ", found all volumes last at " + loop.Searched.UTC().Format(time.RFC3339)
	}
	policy, api := "none", "none: only a running container proves that a mount point is wanted"
	switch {
	case p.cfg.Standalone:
		api = "none: the caller vouches for the path that it names"
	case c != nil:
		policy, api = c.Policy(), "answers"
		if err := c.Answers(ctx); err != nil {
			api = "does not answer: " + err.Error()
		}
	}
	drivers, disabled := "all", ""
	if len(p.cfg.Drivers) > 0 {
		drivers = strings.Join(p.cfg.Drivers, ", ")
	}
	if len(p.cfg.DisabledProviders) > 0 {
		disabled = "; not asked: " + strings.Join(p.cfg.DisabledProviders, ", ")
	}
	var sick, left int
	for _, v := range loop.Volumes {
		if !v.Since.IsZero() {
			sick++
		}
		if v.Left != (healer.LeftAlone{}) {
			left++
		}
	}
	queue := fmt.Sprintf("%d volumes of the loop: %d abnormal, %d of them left alone", len(loop.Volumes), sick, left)
	if loop.On && loop.Volumes == nil {
		queue = "not known: the loop does not answer"
	}
	workers := p.Workers.Stats()
	return []nodeserver.StatusLine{
		{Name: "version", Value: p.cfg.Version},
		{Name: "since", Value: p.began.UTC().Format(time.RFC3339)},
		{Name: "mode", Value: mode},
		{Name: "loop", Value: does},
		{Name: "policy", Value: policy},
		{Name: "api", Value: api},
		{Name: "drivers", Value: drivers},
		{Name: "providers", Value: strings.Join(p.providers, ", ") + disabled},
		{Name: "limits", Value: fmt.Sprintf("%s for a volume, %s for a probe", p.cfg.HealTimeout, p.cfg.ProbeTimeout)},
		{Name: "workers", Value: fmt.Sprintf("%d of %d, and %d that cannot be ended", workers.Living, maxWorkers, workers.Abandoned)},
		{Name: "queue", Value: queue},
	}
}
