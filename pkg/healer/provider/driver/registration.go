package driver

import (
	"context"
	"time"

	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/csi-addons/node-healer/internal/wire"
	"github.com/csi-addons/node-healer/pkg/facts/layout"
	"github.com/csi-addons/node-healer/pkg/healer"
)

// registered returns the CSI socket that a driver's registration with kubelet names;
// empty if there is none, or one outside of kubelet's directory. It is for drivers whose
// directory has another name.
func (p *Provider) registered(ctx context.Context, c healer.Case, each time.Duration) string {
	if known, kept := p.memory.cache.Get(registration{c.Driver}); kept {
		return known.(string)
	}
	socket := layout.Kubelet{Root: p.cfg.KubeletRoot}.Registration(c.Driver)
	conn, err := p.connect(ctx, c, socket, each)
	if err != nil {
		return ""
	}
	defer conn.close()
	info := new(emptypb.Empty)
	if err := conn.call(ctx, wire.GetInfo, new(emptypb.Empty), info); err != nil {
		p.memory.note(socket, "", err)
		return ""
	}
	at := wire.Endpoint(info, c.Driver, p.cfg.KubeletRoot)
	if at == "" {
		return ""
	}
	p.memory.cache.Add(registration{c.Driver}, at, registrationFor)
	return at
}

type registration struct{ driver string }

// registrationFor is how long a registration counts, in which a driver may be upgraded.
const registrationFor = time.Minute
