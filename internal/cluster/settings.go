package cluster

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/validate/content"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/klog/v2"
	"sigs.k8s.io/yaml"

	"github.com/csi-addons/node-healer/pkg/api/clustersettings"
	"github.com/csi-addons/node-healer/pkg/healer"
)

// readSetting has how each key of the ConfigMap with the cluster's settings is read
// (docs/policy.md).
var readSetting = map[string]func(s *settings, text string) error{
	clustersettings.Mode:            func(s *settings, text string) error { return parse(&s.mode, text, parseMode) },
	clustersettings.Loop:            func(s *settings, text string) error { return parse(&s.loop, text, parseLoop) },
	clustersettings.SelfRepair:      func(s *settings, text string) error { return parse(&s.selfRepair, text, parseSelfRepair) },
	clustersettings.SelfRepairGrace: func(s *settings, text string) error { return parse(&s.selfRepairGrace, text, perDriver(parseGrace)) },
	clustersettings.Restage: func(s *settings, text string) error {
		return parse(&s.restage, text, perDriver(healer.ParseRestageOrder))
	},
	clustersettings.WriteWithoutAttachment: func(s *settings, text string) error { return parse(&s.writeWithoutAttachment, text, parseYAML) },
	clustersettings.DriverDaemonSets:       func(s *settings, text string) error { return parse(&s.daemonSets, text, parseYAML) },
	clustersettings.DriverNamespaces:       func(s *settings, text string) error { return parse(&s.driverNamespaces, text, parseNamespaces) },
	// The controller acts on it; a node only refuses what it cannot read.
	clustersettings.Evict: func(_ *settings, text string) error {
		_, err := clustersettings.ParseEviction(text)
		return err
	},
}

// parse sets one field to what a text says. With an error it keeps its default.
func parse[T any](field *T, text string, parser func(string) (T, error)) error {
	value, err := parser(text)
	if err == nil {
		*field = value
	}
	return err
}

func parseYAML[T any](text string) (t T, err error) {
	err = yaml.UnmarshalStrict([]byte(text), &t)
	return t, err
}

func perDriver[T any](parser func(string) (T, error)) func(string) (map[string]T, error) {
	return func(text string) (map[string]T, error) {
		texts, err := parseYAML[map[string]string](text)
		values := map[string]T{}
		for _, driver := range slices.Sorted(maps.Keys(texts)) {
			value, wrong := parser(texts[driver])
			if wrong != nil {
				err = errors.Join(err, fmt.Errorf("driver %.40q: %w", driver, wrong))
			}
			values[driver] = value
		}
		return values, err
	}
}

// settings hold for the whole cluster and change without a rollout.
type settings struct {
	// mode is the most that any node may do.
	mode mode
	// loop says what nodes do by themselves; the first rule that fits counts.
	loop []loopRule
	// selfRepair has what is left to drivers that repair volumes themselves.
	selfRepair selfRepair
	// selfRepairGrace has, by driver, for how long that is left to it, where that is not
	// defaultSelfRepairGrace.
	selfRepairGrace map[string]time.Duration
	// writeWithoutAttachment has the drivers without attachments (attachRequired:
	// false) to whose devices may be written nevertheless.
	writeWithoutAttachment []string
	// restage has the drivers that are told to stage volumes anew, and how.
	restage map[string]healer.RestageOrder
	// daemonSets has, by driver, the driver's DaemonSet as "<namespace>/<name>",
	// where its pods do not show whose they are.
	daemonSets map[string]string
	// driverNamespaces are those whose DaemonSets may be CSI drivers; nil without the
	// key.
	driverNamespaces []string
	// err is what could not be read; mode is then check at most.
	err error
}

func defaultSettings() settings {
	return settings{mode: modeHeal, selfRepair: defaultSelfRepair()}
}

// parseSettings reads what it can. With an error nothing is healed.
func parseSettings(data map[string]string) settings {
	s := defaultSettings()
	var errs []error
	for _, key := range slices.Sorted(maps.Keys(data)) {
		read, known := readSetting[key]
		if !known {
			errs = append(errs, fmt.Errorf("key %s: is none of %s", key, strings.Join(clustersettings.Keys, ", ")))
		} else if err := read(&s, data[key]); err != nil {
			errs = append(errs, fmt.Errorf("key %s: %w", key, err))
		}
	}
	if s.err = errors.Join(errs...); s.err != nil {
		s.mode = min(s.mode, modeCheck)
		s.writeWithoutAttachment = nil
	}
	return s
}

// parseNamespaces reads a list of names; an empty text is no list (nil).
func parseNamespaces(text string) (names []string, err error) {
	if names, err = parseYAML[[]string](text); err != nil {
		return nil, err
	}
	for _, name := range names {
		for _, broken := range content.IsDNS1123Label(name) {
			err = errors.Join(err, fmt.Errorf("%.40q is no name of a namespace: %s", name, broken))
		}
	}
	return names, err
}

// settingsStore keeps the latest settings. It goes by whatever brings them first,
// the informer or a read before a step, so that a kill switch counts at once. When the
// ConfigMap is deleted, the last ones hold: a deletion is no permission to heal.
type settingsStore struct {
	mu sync.Mutex
	// settings are those of parsed, which is nil before the first ConfigMap.
	settings settings
	parsed   *corev1.ConfigMap
}

func (c *Cluster) currentSettings() settings {
	now, _, _ := last(c.reader, configMapKind, c.cfg.Namespace, c.cfg.ConfigMap)
	return c.settings.update(now, false)
}

// update returns the settings after taking over those of m, unless later ones are
// known, or m is nil. What the API answers now counts whatever is known: its
// resourceVersion goes back when etcd is restored.
func (s *settingsStore) update(m *corev1.ConfigMap, now bool) settings {
	s.mu.Lock()
	defer s.mu.Unlock()
	if m == nil || m == s.parsed {
		return s.settings
	}
	if s.parsed != nil {
		order, err := resourceversion.CompareResourceVersion(m.ResourceVersion, s.parsed.ResourceVersion)
		if err == nil && (order == 0 || order < 0 && !now) {
			return s.settings
		}
	}
	parsed := parseSettings(m.Data)
	if parsed.err != nil {
		klog.ErrorS(parsed.err, "Bad settings: nothing is healed until they are right", "configMap", m.Namespace+"/"+m.Name)
	}
	if s.settings.mode != parsed.mode {
		klog.InfoS("The mode of the cluster changed", "mode", parsed.mode.String())
	}
	s.parsed, s.settings = m, parsed
	return parsed
}
