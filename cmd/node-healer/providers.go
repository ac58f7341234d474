package main

import (
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/csi-addons/node-healer/pkg/healer"
	"github.com/csi-addons/node-healer/pkg/healer/provider"
	"github.com/csi-addons/node-healer/pkg/healer/provider/driver"
	"github.com/csi-addons/node-healer/pkg/host"
)

// newProviders makes the providers that are not disabled, with their configurations.
func newProviders(cfg config, node *host.Node, stager driver.Stager) ([]healer.Provider, error) {
	files := map[string]healer.ProviderConfig{}
	for name, path := range cfg.providerConfigs {
		text, err := readConfig(path)
		if err != nil {
			return nil, fmt.Errorf("--provider-config %s: %w", name, err)
		}
		files[name] = text
	}
	providers, err := provider.New(provider.Config{
		Driver: driver.Config{
			KubeletRoot: cfg.kubeletRoot, RealRoot: node.Kubelet().Root, Sockets: cfg.csiSockets, StepTimeout: cfg.healTimeout / stepShare,
			DriverTimeout: min(cfg.driverTimeout, cfg.healTimeout), Stager: stager,
		},
		Tools: func(uses healer.Uses) healer.Tools { return healer.NewTools(node, uses) },
		Node:  node, Scope: cfg.healContainers, FUSEAbort: cfg.fuseAbort, Files: files, Disabled: cfg.disabledProviders,
	})
	if err != nil {
		return nil, fmt.Errorf("--provider-config, --disable-provider: %w", err)
	}
	return providers, nil
}

// maxConfig bounds a provider's configuration, in bytes.
const maxConfig = 1 << 20

func readConfig(path string) (healer.ProviderConfig, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	text, err := io.ReadAll(io.LimitReader(f, maxConfig+1))
	if err := errors.Join(err, f.Close()); err != nil {
		return nil, err
	}
	if len(text) > maxConfig {
		return nil, fmt.Errorf("%s is longer than %d bytes", path, maxConfig)
	}
	return text, nil
}
