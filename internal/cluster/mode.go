package cluster

import (
	"fmt"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/csi-addons/node-healer/pkg/api/clustersettings"
)

// mode is what may be done with a volume; a lower one is stricter. It may be set by
// annotation on a Node, StorageClass, PersistentVolume, PersistentVolumeClaim and
// Pod. The strictest one counts: who may write to a pod must not overrule who may
// write to a node.
type mode int

const (
	// modeOff: the volume is not even inspected.
	modeOff mode = iota
	// modeCheck: nothing is changed and nothing is written.
	modeCheck
	modeHeal
)

var modeNames = []string{modeOff: "off", modeCheck: "check", modeHeal: "heal"}

func (m mode) String() string { return modeNames[m] }

// parseMode returns check for a value that is no mode.
func parseMode(word string) (mode, error) {
	if m := slices.Index(modeNames, word); m >= 0 {
		return mode(m), nil
	}
	return modeCheck, fmt.Errorf("%.40q is none of off, check, heal, and counts as check", word)
}

// effectiveMode is the mode of one volume at one mount point, and who set it.
type effectiveMode struct {
	mode mode
	by   string
	// err is why the value cannot be read; it counts as check.
	err error
}

// require returns why the mode is not enough; nil: it is.
func (e effectiveMode) require(wanted mode) error {
	switch {
	case e.mode >= wanted:
		return nil
	case e.err != nil:
		return fmt.Errorf("%s: %w", e.by, e.err)
	default:
		return fmt.Errorf("mode %s by %s", e.mode, e.by)
	}
}

// mode returns the strictest mode for a volume at a mount point: of the settings,
// the node, the volume with its claim and class, and the pods.
func (c *Cluster) mode(w *view) effectiveMode {
	e := effectiveMode{mode: w.settings.mode, by: c.configMapName() + ", key " + clustersettings.Mode}
	if w.settings.err != nil {
		e.by, e.err = c.configMapName(), w.settings.err
	}
	limit := func(kind string, o metav1.Object) {
		value, set := o.GetAnnotations()[clustersettings.ModeAnnotation]
		if mode, err := parseMode(value); set && mode < e.mode {
			e = effectiveMode{mode, w.name(kind, o) + ", annotation " + clustersettings.ModeAnnotation, err}
		}
	}
	if w.node != nil {
		limit("Node", w.node)
	}
	for _, b := range w.volumes {
		limit("PersistentVolume", b.pv)
		if b.class != nil {
			limit("StorageClass", b.class)
		}
		if b.claim != nil {
			limit("PersistentVolumeClaim", b.claim)
		}
	}
	for _, pod := range w.pods {
		limit("Pod", pod)
	}
	return e
}
