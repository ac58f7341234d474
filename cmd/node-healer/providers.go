package main

import (
	"fmt"

	"github.com/csi-addons/node-healer/internal/engine"
	"github.com/csi-addons/node-healer/internal/node"
	"github.com/csi-addons/node-healer/pkg/healer"
	"github.com/csi-addons/node-healer/pkg/healer/provider"
	"github.com/csi-addons/node-healer/pkg/healer/provider/driver"
)

// newProviders makes the providers that are not disabled.
func newProviders(cfg config, host *node.Node, stager driver.Stager) ([]healer.Provider, error) {
	providers, err := provider.New(provider.Config{
		Driver: driver.Config{
			KubeletRoot: cfg.kubeletRoot, RealRoot: host.Kubelet().Root, Sockets: cfg.csiSockets, StepTimeout: cfg.healTimeout / stepShare,
			DriverTimeout: min(cfg.driverTimeout, cfg.healTimeout), Stager: stager,
		},
		Tools: engine.NewTools(host), Node: host, Scope: cfg.healContainers, FUSEAbort: cfg.fuseAbort, Disabled: cfg.disabledProviders,
	})
	if err != nil {
		return nil, fmt.Errorf("--disable-provider: %w", err)
	}
	return providers, nil
}
