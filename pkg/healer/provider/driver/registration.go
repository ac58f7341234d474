package driver

import (
	"context"
	"path"
	"strings"
	"time"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/csi-addons/node-healer/pkg/facts/layout"
	"github.com/csi-addons/node-healer/pkg/healer"
)

// registered returns the CSI socket that a driver's registration with kubelet names;
// empty if there is none, or one outside of kubelet's directory. It is for drivers whose
// directory has another name.
//
// The one call is not worth the module of its messages (k8s.io/kubelet,
// pkg/apis/pluginregistration/v1): they are read by field number, as fields that an
// empty message does not know.
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
	if err := conn.call(ctx, "/pluginregistration.Registration/GetInfo", new(emptypb.Empty), info); err != nil {
		p.memory.note(socket, "", err)
		return ""
	}
	at := endpointIn(info.ProtoReflect().GetUnknown(), c.Driver)
	if path.Clean(at) != at || !strings.HasPrefix(at, p.cfg.KubeletRoot+"/") {
		return ""
	}
	p.memory.cache.Add(registration{c.Driver}, at, registrationFor)
	return at
}

type registration struct{ driver string }

// registrationFor is how long a registration counts, in which a driver may be upgraded.
const registrationFor = time.Minute

// endpointIn returns the endpoint in a PluginInfo of a CSI driver.
func endpointIn(info []byte, driver string) string {
	const kind, name, endpoint = 1, 2, 3
	field := map[protowire.Number]string{}
	each(info, func(number protowire.Number, _ uint64, s []byte) { field[number] = string(s) })
	if field[kind] != "CSIPlugin" || field[name] != driver {
		return ""
	}
	return field[endpoint]
}
