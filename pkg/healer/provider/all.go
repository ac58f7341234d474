// Package provider lists the storage providers that a server asks, in order.
package provider

import (
	"github.com/csi-addons/node-healer/pkg/healer"
	"github.com/csi-addons/node-healer/pkg/healer/provider/mounts"
	"github.com/csi-addons/node-healer/pkg/host"
)

// All gives every provider. A new one is a package below this one and a line
// here; the generic one comes first.
func All(node *host.Node, containers mounts.Containers) []healer.Provider {
	return []healer.Provider{
		mounts.New(node, containers),
	}
}
