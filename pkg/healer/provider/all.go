// Package provider lists the storage providers that a server asks, in order.
package provider

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/csi-addons/node-healer/pkg/healer"
	"github.com/csi-addons/node-healer/pkg/healer/provider/containers"
	"github.com/csi-addons/node-healer/pkg/healer/provider/driver"
	"github.com/csi-addons/node-healer/pkg/healer/provider/fuse"
	"github.com/csi-addons/node-healer/pkg/healer/provider/mounts"
	"github.com/csi-addons/node-healer/pkg/healer/provider/network"
	"github.com/csi-addons/node-healer/pkg/host"
)

// all has every provider in the order in which they are asked: each sees the conditions
// that those before it found. A new one is a package below this one and a line here,
// before driver: what it does not see there, the driver is not told to heal.
var all = []registration{
	{"mounts", func(c Config) healer.Provider { return mounts.New(c.Node) }},
	{"fuse", func(c Config) healer.Provider { return fuse.New(c.Node, c.FUSEAbort) }},
	{"containers", func(c Config) healer.Provider { return containers.New(c.Node, c.Scope) }},
	{"network", func(c Config) healer.Provider { return network.New(c.Tools) }},
	{"driver", func(c Config) healer.Provider {
		c.Driver.Host = c.Node
		return driver.New(c.Driver, c.Tools)
	}},
}

// registration makes a provider; its name is the one that the provider has.
type registration struct {
	name string
	make func(Config) healer.Provider
}

// Config is what providers are made with.
type Config struct {
	Node *host.Node
	// Scope says in which containers mounts are replaced.
	Scope containers.Scope
	// FUSEAbort has hung FUSE connections aborted.
	FUSEAbort bool
	// Driver says where drivers are found.
	Driver driver.Config
	Tools  healer.Tools
	// Disabled are the names of those that are not asked (--disable-provider).
	Disabled []string
}

// New makes the providers of a server.
func New(c Config) (made []healer.Provider, err error) {
	names := make([]string, 0, len(all))
	for _, r := range all {
		if names = append(names, r.name); !slices.Contains(c.Disabled, r.name) {
			made = append(made, r.make(c))
		}
	}
	for _, name := range c.Disabled {
		if !slices.Contains(names, name) {
			return nil, fmt.Errorf("there is no provider %.40q; the providers are %s", name, strings.Join(names, ", "))
		}
	}
	if len(made) == 0 {
		return nil, errors.New("every provider is disabled")
	}
	return made, nil
}
