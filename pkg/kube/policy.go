package kube

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// modeAnnotation may stand on a Node, StorageClass, PersistentVolume,
// PersistentVolumeClaim and Pod. The most specific one counts.
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

// rulingOn gives the ruling for a volume at the place of one pod. For a place
// that is no pod's, the strictest of its pods here counts.
func (c *Cluster) rulingOn(s settings, v volumeName, podUID string) ruling {
	r := ruling{mode: s.mode, by: c.settingsName() + ", key " + keyMode}
	if s.trouble != nil {
		r.by, r.trouble = c.settingsName(), s.trouble
	}
	pvs := c.volumesOf(v)
	// What the directory is named after may forbid, also where a caller takes it
	// for another volume.
	if pv, known := one[*volume](c.volumes, v.directory); known && !v.fits(pv) {
		r = strictest(r, c.annotatedVolume(pv))
	}
	if podUID != "" {
		pod, _ := c.pod(podUID)
		return strictest(r, c.annotated(pod, pvs))
	}
	r = strictest(r, c.annotated(nil, pvs))
	for _, pod := range c.podsUsing(v) {
		r = strictest(r, c.annotated(pod, pvs))
	}
	return r
}

// forbidsWrites says why nothing must be written through the place of one pod:
// what is written to is that of all its pods.
func (c *Cluster) forbidsWrites(s settings, v volumeName, podUID string) error {
	return strictest(c.rulingOn(s, v, podUID), c.rulingOn(s, v, "")).forbids(modeHeal)
}

// annotated gives the word of the most specific object that has one, for each of
// the volumes that the name may mean.
func (c *Cluster) annotated(pod *corev1.Pod, pvs []*volume) ruling {
	if pod != nil {
		if r, says := word("Pod", pod); says {
			return r
		}
	}
	r := ruling{mode: modeHeal}
	for _, pv := range pvs {
		r = strictest(r, c.annotatedVolume(pv))
	}
	if len(pvs) == 0 {
		return c.annotatedNode()
	}
	return r
}

func (c *Cluster) annotatedVolume(pv *volume) ruling {
	if claim, known := c.claimOf(pv); known {
		if r, says := word("PersistentVolumeClaim", claim.GetObjectMeta()); says {
			return r
		}
	}
	if r, says := word("PersistentVolume", pv.GetObjectMeta()); says {
		return r
	}
	if class, known := one[*metav1.PartialObjectMetadata](c.classes, pv.class); known {
		if r, says := word("StorageClass", class); says {
			return r
		}
	}
	return c.annotatedNode()
}

func (c *Cluster) annotatedNode() ruling {
	if node, known := one[*corev1.Node](c.node, c.cfg.Node); known {
		if r, says := word("Node", node); says {
			return r
		}
	}
	return ruling{mode: modeHeal}
}

// word reads the annotation of one object.
func word(kind string, o metav1.Object) (r ruling, says bool) {
	text, says := o.GetAnnotations()[modeAnnotation]
	if !says {
		return ruling{}, false
	}
	name := o.GetName()
	if o.GetNamespace() != "" {
		name = o.GetNamespace() + "/" + name
	}
	r.by = fmt.Sprintf("%s %s, annotation %s", kind, name, modeAnnotation)
	r.mode, r.trouble = parseMode(text)
	return r, true
}
