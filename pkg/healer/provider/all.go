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
)

// Host is what the providers of a server ask of their host.
type Host interface {
	mounts.Host
	fuse.Host
	containers.Host
	driver.Host
}

// Config is what providers are made with.
type Config struct {
	Node Host
	// Scope says in which containers mounts are replaced.
	Scope containers.Scope
	// FUSEAbort has hung FUSE connections aborted.
	FUSEAbort bool
	// Driver says where drivers are found. Without a Stager none is asked: the program is one.
	Driver driver.Config
	Tools  healer.Tools
	// More are those of other modules, which are asked right before driver.
	More []healer.Provider
	// Disabled are the names of those that are not asked (--disable-provider).
	Disabled []string
}

// New makes the providers of a server in the order in which they are asked: each sees the
// conditions that those before it found. A new one is a package below this one and a line
// here, or one of Config.More. driver is last: what it does not see, the driver is not told
// to heal.
func New(c Config) ([]healer.Provider, error) {
	c.Driver.Host = c.Node
	inputs, _ := c.Driver.Stager.(fuse.Inputs)
	all := []healer.Provider{
		mounts.New(c.Node),
		fuse.New(c.Node, inputs, c.FUSEAbort),
		containers.New(c.Node, c.Scope),
		network.New(c.Tools),
	}
	all = append(all, c.More...)
	if c.Driver.Stager != nil {
		all = append(all, driver.New(c.Driver, c.Tools))
	}
	var names []string
	for _, p := range all {
		if slices.Contains(names, p.Name()) {
			return nil, fmt.Errorf("two providers are named %q", p.Name())
		}
		names = append(names, p.Name())
	}
	for _, name := range c.Disabled {
		if !slices.Contains(names, name) {
			return nil, fmt.Errorf("there is no provider %.40q; the providers are %s", name, strings.Join(names, ", "))
		}
	}
	asked := slices.DeleteFunc(all, func(p healer.Provider) bool { return slices.Contains(c.Disabled, p.Name()) })
	if len(asked) == 0 {
		return nil, errors.New("every provider is disabled")
	}
	return asked, nil
}
