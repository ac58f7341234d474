package kube

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/validate/content"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/klog/v2"
	"sigs.k8s.io/yaml"
)

// The keys of the ConfigMap with the cluster's settings (docs/policy.md).
const (
	keyMode                   = "mode"
	keySelfRepair             = "self-repairing-drivers"
	keyWriteWithoutAttachment = "write-without-attachment"
	keyDriverDaemonSets       = "driver-daemonsets"
	keyDriverNamespaces       = "driver-namespaces"
)

var keys = []string{keyMode, keySelfRepair, keyWriteWithoutAttachment, keyDriverDaemonSets, keyDriverNamespaces}

// settings are what holds for the whole cluster, changed without a rollout.
type settings struct {
	// mode is the most that any node may do.
	mode mode
	// selfRepair says what is left to drivers that repair themselves.
	selfRepair SelfRepair
	// writeWithoutAttachment lists drivers without attachments (attachRequired:
	// false) to whose devices may be written all the same.
	writeWithoutAttachment []string
	// daemonSets tells, by driver, whose pods are the driver's, as
	// "<namespace>/<name>", where the pods do not tell it themselves.
	daemonSets map[string]string
	// driverNamespaces are those whose DaemonSets may be CSI drivers; nil without the
	// key.
	driverNamespaces []string
	// trouble is what could not be read; mode is then check at most.
	trouble error
}

func defaultSettings() settings {
	return settings{mode: modeHeal, selfRepair: DefaultSelfRepair()}
}

// parseSettings reads what it can, and is careful about the rest.
func parseSettings(data map[string]string) settings {
	s := defaultSettings()
	var errs []error
	bad := func(key string, err error) { errs = append(errs, fmt.Errorf("key %s: %w", key, err)) }
	for _, key := range slices.Sorted(maps.Keys(data)) {
		text := data[key]
		var err error
		switch key {
		case keyMode:
			s.mode, err = parseMode(text)
		case keySelfRepair:
			s.selfRepair, err = ParseSelfRepair(text)
		case keyWriteWithoutAttachment:
			err = yaml.UnmarshalStrict([]byte(text), &s.writeWithoutAttachment)
		case keyDriverDaemonSets:
			err = yaml.UnmarshalStrict([]byte(text), &s.daemonSets)
		case keyDriverNamespaces:
			s.driverNamespaces, err = parseNamespaces(text)
		default:
			err = errors.New("is none of " + strings.Join(keys, ", "))
		}
		if err != nil {
			bad(key, err)
		}
	}
	if s.trouble = errors.Join(errs...); s.trouble != nil {
		s.mode = min(s.mode, modeCheck)
		s.writeWithoutAttachment = nil
	}
	return s
}

// parseNamespaces reads a list of names; an empty text is no list.
func parseNamespaces(text string) (names []string, err error) {
	if err := yaml.UnmarshalStrict([]byte(text), &names); err != nil {
		return nil, err
	}
	for _, name := range names {
		for _, broken := range content.IsDNS1123Label(name) {
			err = errors.Join(err, fmt.Errorf("%.40q is no name of a namespace: %s", name, broken))
		}
	}
	return names, err
}

// rules gives the last settings that were heard of: in memory too, because a kill
// switch must count from the first moment that it is known.
func (c *Cluster) rules() settings {
	c.mu.Lock()
	defer c.mu.Unlock()
	now, found := one[*corev1.ConfigMap](c.configMap, c.cfg.Namespace+"/"+c.cfg.ConfigMap)
	if found {
		return c.heard(now)
	}
	if c.parsed != nil && !c.gone {
		// Whoever deletes it, or has a tool make it anew, did not say heal.
		klog.InfoS("The settings of the cluster are gone, and the last ones hold", "configMap", c.settingsName(), "mode", c.settings.mode.String())
		c.gone = true
	}
	return c.settings
}

// hear takes over what somebody brought, unless something later is known.
func (c *Cluster) hear(m *corev1.ConfigMap) settings {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.heard(m)
}

// heard is hear, with the lock held.
func (c *Cluster) heard(m *corev1.ConfigMap) settings {
	if m == c.parsed {
		return c.settings
	}
	if c.parsed != nil {
		order, err := resourceversion.CompareResourceVersion(m.ResourceVersion, c.parsed.ResourceVersion)
		if err == nil && order <= 0 {
			return c.settings
		}
	}
	s := parseSettings(m.Data)
	if s.trouble != nil {
		klog.ErrorS(s.trouble, "Bad settings: nothing is healed until they are right", "configMap", c.cfg.Namespace+"/"+c.cfg.ConfigMap)
	}
	if c.settings.mode != s.mode {
		klog.InfoS("The mode of the cluster changed", "mode", s.mode.String())
	}
	c.parsed, c.settings, c.gone = m, s, false
	return s
}

// settings gives the settings, asked for anew before a step.
func (v *viewing) settings(ctx context.Context) settings {
	c := v.c
	if v.now {
		m, err := ask(ctx, c.reader, configMapKind, c.cfg.Namespace, c.cfg.ConfigMap)
		switch {
		case m != nil:
			return c.hear(m)
		case silence(err):
			v.note(err, nil)
		case err != nil:
			v.note(nil, fmt.Errorf("cannot ask for the settings of the cluster: %w", err))
		default:
			return c.rules() // there are none
		}
	}
	v.note(nil, c.configMap.listed()) // it may say off
	return c.rules()
}

func (c *Cluster) settingsName() string {
	return "ConfigMap " + c.cfg.Namespace + "/" + c.cfg.ConfigMap
}
