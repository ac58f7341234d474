// Package provider lists the storage providers that a server asks, in order.
package provider

import (
	"errors"
	"fmt"
	"maps"
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
	{"mounts", func(s setup) (healer.Provider, error) { return mounts.New(s.Node), nil }},
	{"fuse", func(s setup) (healer.Provider, error) { return fuse.New(s.Node, s.FUSEAbort), nil }},
	{"containers", func(s setup) (healer.Provider, error) { return containers.New(s.Node, s.Scope), nil }},
	{"network", func(s setup) (healer.Provider, error) { return network.New(s.Tools(network.Uses)), nil }},
	{"driver", func(s setup) (healer.Provider, error) {
		s.Driver.Host = s.Node
		return driver.New(s.Driver, s.Tools(healer.Uses{Sockets: true})), nil
	}},
}

// registration makes a provider; its name is the one that the provider has.
type registration struct {
	name string
	make func(setup) (healer.Provider, error)
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
	// Tools returns the tools for what a provider uses.
	Tools func(healer.Uses) healer.Tools
	// Files have a provider's own configuration, by its name (--provider-config).
	Files map[string]healer.ProviderConfig
	// Disabled are the names of those that are not asked (--disable-provider).
	Disabled []string
}

// setup is a Config for one provider.
type setup struct {
	Config
	// file is the provider's own configuration; nil without one.
	file healer.ProviderConfig
	// read is set by the constructor of a provider that has a configuration.
	read *bool
}

// File returns the provider's own configuration, for a provider that has one.
func (s setup) File() healer.ProviderConfig {
	*s.read = true
	return s.file
}

// New makes the providers of a server.
func New(c Config) ([]healer.Provider, error) {
	var made []healer.Provider
	var errs []error
	names := make([]string, 0, len(all))
	for _, r := range all {
		names = append(names, r.name)
		if slices.Contains(c.Disabled, r.name) {
			continue
		}
		file, configured := c.Files[r.name]
		read := false
		p, err := r.make(setup{Config: c, file: file, read: &read})
		switch {
		case err != nil:
			errs = append(errs, fmt.Errorf("provider %s: %w", r.name, err))
		case configured && !read:
			errs = append(errs, fmt.Errorf("provider %s has no configuration", r.name))
		default:
			made = append(made, p)
		}
	}
	for _, name := range slices.Concat(c.Disabled, slices.Sorted(maps.Keys(c.Files))) {
		if !slices.Contains(names, name) {
			errs = append(errs, fmt.Errorf("there is no provider %.40q; the providers are %s", name, strings.Join(names, ", ")))
		}
	}
	if len(made) == 0 && len(errs) == 0 {
		errs = append(errs, errors.New("every provider is disabled"))
	}
	return made, errors.Join(errs...)
}
