package kube

import (
	"fmt"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// modeAnnotation may stand on a Node, StorageClass, PersistentVolume,
// PersistentVolumeClaim and Pod. The strictest one counts: who may write to a pod
// must not overrule who may write to a node.
const modeAnnotation = "node-healer.csi-addons.io/mode"

// mode is how far one may go with a volume; less is stricter.
type mode int

const (
	// modeOff: the volume is not even looked at.
	modeOff mode = iota
	// modeCheck: nothing is changed and nothing is written.
	modeCheck
	modeHeal
)

var modeNames = [...]string{modeOff: "off", modeCheck: "check", modeHeal: "heal"}

// String gives the mode as annotations write it.
func (m mode) String() string { return modeNames[m] }

// maxModeBytes bounds what is kept of the annotation: none that is longer is a mode.
const maxModeBytes = 64

// modeOf gives the annotation, with memory of its own.
func modeOf(o metav1.Object) (text string, set bool) {
	text, set = o.GetAnnotations()[modeAnnotation]
	return strings.Clone(text[:min(len(text), maxModeBytes)]), set
}

// parseMode takes a bad word for check.
func parseMode(word string) (mode, error) {
	for m, name := range modeNames {
		if word == name {
			return mode(m), nil
		}
	}
	return modeCheck, fmt.Errorf("%.40q is none of off, check, heal, and counts as check", word)
}

// ruling is the mode of one volume at one place, and by whose word.
type ruling struct {
	mode mode
	by   string
	// trouble is a value that cannot be read; it counts as check.
	trouble error
}

// forbids says why the mode is not enough; nil if it is.
func (r ruling) forbids(wanted mode) error {
	switch {
	case r.mode >= wanted:
		return nil
	case r.trouble != nil:
		return fmt.Errorf("%s: %w", r.by, r.trouble)
	default:
		return fmt.Errorf("mode %s by %s", r.mode, r.by)
	}
}

// strictest gives the one that allows least.
func strictest(a, b ruling) ruling {
	if b.mode < a.mode {
		return b
	}
	return a
}

// ruling gives the strictest word for a volume at a mount point: of the settings, the node,
// the volume with its claim and class, and the pods.
func (c *Cluster) ruling(w view) ruling {
	r := ruling{mode: w.settings.mode, by: c.settingsName() + ", key " + keyMode}
	if w.settings.trouble != nil {
		r.by, r.trouble = c.settingsName(), w.settings.trouble
	}
	if w.node != nil {
		r = strictest(r, word("Node", w.node))
	}
	for _, b := range w.volumes {
		if r = strictest(r, word("PersistentVolume", b.pv)); b.class != nil {
			r = strictest(r, word("StorageClass", b.class))
		}
		if b.claim != nil {
			r = strictest(r, word("PersistentVolumeClaim", b.claim))
		}
	}
	for _, p := range w.pods {
		r = strictest(r, word("Pod", p))
	}
	return r
}

// word reads the annotation of one object.
func word(kind string, o metav1.Object) ruling {
	text, says := o.GetAnnotations()[modeAnnotation]
	if !says {
		return ruling{mode: modeHeal}
	}
	name := o.GetName()
	if o.GetNamespace() != "" {
		name = o.GetNamespace() + "/" + name
	}
	r := ruling{by: fmt.Sprintf("%s %s, annotation %s", kind, name, modeAnnotation)}
	r.mode, r.trouble = parseMode(text)
	return r
}
