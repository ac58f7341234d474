// Package provider lists the storage providers that a server asks, in order.
package provider

import (
	"github.com/csi-addons/node-healer/pkg/healer"
	"github.com/csi-addons/node-healer/pkg/healer/provider/containers"
	"github.com/csi-addons/node-healer/pkg/healer/provider/mounts"
	"github.com/csi-addons/node-healer/pkg/host"
)

// All returns every provider in the order in which they are asked: each sees the
// conditions that those before it found. A new one is a package below this one and a
// line here.
func All(node *host.Node, scope containers.Scope) []healer.Provider {
	return []healer.Provider{
		mounts.New(node),
		containers.New(node, scope),
	}
}
