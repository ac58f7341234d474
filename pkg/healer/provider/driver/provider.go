// Package driver asks the CSI driver that a volume belongs to, on its own sockets on
// this node: its opinion of the volume is evidence, and a driver that can heal gets the
// step delegate.
//
// A driver is believed in nothing that can be seen: its opinion adds a condition and
// never takes one away, and what it healed is observed again. It is not asked about a
// volume whose own probe hangs, because each call could leave a thread of it stuck.
package driver

import (
	"context"
	"errors"
	"io/fs"
	"net"
	"path"
	"strings"
	"time"

	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/csi-addons/node-healer/internal/node"
	"github.com/csi-addons/node-healer/pkg/facts"
	"github.com/csi-addons/node-healer/pkg/facts/layout"
	"github.com/csi-addons/node-healer/pkg/healer"
)

// Config is what the provider is made of.
type Config struct {
	// KubeletRoot is kubelet's directory as kubelet and the drivers call it, RealRoot
	// the same without symbolic links.
	KubeletRoot, RealRoot string
	// Sockets are CSI sockets by the name of the driver, for those that are elsewhere
	// than kubelet has them.
	Sockets map[string]string
	// StepTimeout is how long a driver may take to heal a volume, DriverTimeout how long
	// to stage one.
	StepTimeout, DriverTimeout time.Duration
	// Stager says which drivers stage volumes anew, and with what drivers are called.
	Stager Stager
	// Host is the node.
	Host Host
}

// Provider asks drivers.
type Provider struct {
	cfg    Config
	tools  healer.Tools
	memory memory
	// peer returns the process at the other end of a connection.
	peer func(net.Conn) int
}

// New returns the provider.
func New(cfg Config, tools healer.Tools) *Provider {
	return &Provider{cfg: cfg, tools: tools, memory: newMemory(clock.RealClock{}), peer: node.PeerPID}
}

const name = "driver"

// Name implements healer.Provider.
func (*Provider) Name() string { return name }

// Evidence is what a driver answered.
type Evidence struct {
	// Opinion is what the driver finds wrong with the volume, or found when it was asked
	// last; nil for nothing, or if that is not known.
	Opinion *healer.Condition
	// NotAsked says why the driver has no say, and NotOffered why it does not heal.
	NotAsked, NotOffered string
	// HealsAt is the socket at which the driver may offer NodeHealer; empty: it does
	// not.
	HealsAt string
	// HealPID and StagePID are the processes that listen where NodeHealer and
	// NodeStageVolume are called; 0 for one that was not asked, or cannot be seen.
	HealPID, StagePID int
	// Order is how the driver is told to stage the volume anew, at the socket StagesAt;
	// NotRestaged says why it is not. All are empty where nothing is to be staged.
	Order                 healer.RestageOrder
	StagesAt, NotRestaged string
	// Mounting says which process may be about to mount what a step began to have staged;
	// empty for none.
	Mounting string
	// InputsChanged is Step.InputsChanged.
	InputsChanged bool
}

// Collect implements healer.Collector. A driver that cannot be asked makes nothing
// abnormal: it is evidence.
func (p *Provider) Collect(ctx context.Context, c healer.Case) (healer.Evidence, error) {
	deadline, bounded := ctx.Deadline()
	// The driver's name comes from a file, and is to be that of a directory.
	named := strings.Trim(c.Driver, ".") != "" && len(c.Driver) <= maxName && !strings.ContainsAny(c.Driver, "/\x00")
	if !bounded || !named || hangs(c) {
		return nil, nil //nolint:nilnil // there is no evidence
	}
	each := time.Until(deadline) / parts
	socket := p.socket(c.Driver)
	conn, err := p.connect(ctx, c, socket, each)
	if errors.Is(err, fs.ErrNotExist) {
		if at := p.registered(ctx, c, each); at != "" {
			socket = at
			conn, err = p.connect(ctx, c, socket, each)
		}
	}
	var e Evidence
	if err == nil {
		defer conn.close()
		e.StagePID = conn.pid
		e.Opinion, err = p.opinion(ctx, c, conn, socket)
	}
	if err != nil {
		e.Opinion = p.memory.lastOpinion(c)
		e.NotAsked = "cannot be asked: " + clean(err.Error(), maxText)
	}
	if e.HealsAt, e.HealPID, err = p.healsAt(ctx, c, socket, each); err != nil {
		e.NotOffered = clean(err.Error(), maxText)
	}
	if s, remembers := p.cfg.Stager.(interface{ Remember(c healer.Case) }); remembers {
		s.Remember(c)
	}
	if staged, may := restageable(c); may {
		e.StagesAt = socket
		if c.Restaging() {
			e.Mounting = p.mounting(ctx, c, staged, e.StagePID)
		}
		if e.Order, err = p.cfg.Stager.Order(c.Driver); err != nil {
			e.NotRestaged = err.Error()
		}
		e.InputsChanged = p.inputsChanged(ctx, c)
	}
	klog.FromContext(ctx).V(4).Info("Asked the driver", "driver", c.Driver, "notAsked", e.NotAsked, "notOffered", e.NotOffered)
	return e, nil
}

// parts is into how many parts the time for all questions is divided.
const parts = 6

// Examine implements healer.Provider.
func (p *Provider) Examine(c healer.Case) (healer.Finding, error) {
	e, asked := c.Evidence[name].(Evidence)
	if !asked {
		return healer.Finding{}, nil
	}
	f := healer.Finding{Mine: true}
	if o := e.Opinion; o != nil {
		if _, found := c.MountPoint(o.MountPoint); found {
			f.Conditions = []healer.Condition{*o}
		}
	}
	if e.HealsAt != "" {
		f.Steps = p.steps(c, e.HealsAt)
	}
	if step, offered := p.restage(c, e); offered {
		f.Steps = append(f.Steps, step)
	}
	return f, nil
}

// socket returns the CSI socket of a driver: where it is by convention, unless it is
// configured.
func (p *Provider) socket(driver string) string {
	if at, configured := p.cfg.Sockets[driver]; configured {
		return at
	}
	return layout.Kubelet{Root: p.cfg.KubeletRoot}.Socket(driver)
}

// addonsSocket returns the socket of the CSI-Addons services, which lies beside the
// other one by convention (csi-addons/kubernetes-csi-addons).
func addonsSocket(socket string) string { return path.Join(path.Dir(socket), "csi-addons.sock") }

// forDriver returns a path as the driver knows it, which has kubelet's directory by its
// usual name.
func (p *Provider) forDriver(at string) string {
	if rest, beneath := facts.Below(p.cfg.RealRoot, at); beneath && rest != "" {
		return path.Join(p.cfg.KubeletRoot, rest)
	}
	return at
}

// hangs reports whether anything of the volume does not answer, or may not.
func hangs(c healer.Case) bool {
	for _, sb := range c.Superblocks {
		if !sb.Answer.Asked || sb.Answer.TimedOut || sb.Answer.Frozen || sb.Write.TimedOut {
			return true
		}
	}
	for _, p := range c.MountPoints {
		_, probed := c.Superblocks[p.Dev()]
		switch {
		case p.InContainer != nil && p.InContainer.Probe.TimedOut:
			return true
		case p.InContainer == nil && p.Mounted() && (!probed || p.Own.TimedOut):
			return true
		}
	}
	return false
}
