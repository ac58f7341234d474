package healer

import (
	"fmt"

	"sigs.k8s.io/yaml"
)

// ProviderConfig is the text of a provider's own configuration, in YAML.
type ProviderConfig []byte

// Decode reads the configuration into a struct with json tags. A field that the struct
// does not have, or that is there twice, is an error; without a configuration the
// struct stays as it is. The error does not quote the text, which may hold secrets.
func (c ProviderConfig) Decode(into any) error {
	if len(c) == 0 {
		return nil
	}
	if err := yaml.UnmarshalStrict(c, into); err != nil {
		return fmt.Errorf("its configuration: %w", err)
	}
	return nil
}

// Declarer is a provider with reasons of its own, beside those of this package.
type Declarer interface {
	Provider
	// Reasons returns them all.
	Reasons() []Reason
}

// AllReasons returns the reasons of this package and those of providers: what settings
// may name.
func AllReasons(providers []Provider) []Reason {
	all := Reasons()
	for _, p := range providers {
		if d, has := p.(Declarer); has {
			all = append(all, d.Reasons()...)
		}
	}
	return all
}
