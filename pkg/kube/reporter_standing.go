package kube

import (
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/csi-addons/node-healer/pkg/healer"
)

// The reasons of events. They are part of the interface, as a condition's are.
const (
	reasonAbnormal = "VolumeAbnormal"
	reasonHealed   = "VolumeHealed"
	reasonRefused  = "VolumeHealRefused"
	// reasonHealthy is for a volume that came back without us.
	reasonHealthy = "VolumeHealthy"
)

// standing is what was last said of a volume.
type standing struct {
	noted    time.Time
	abnormal bool
	reasons  string
	refusals string
}

// news is one thing to say.
type news struct {
	reason, severity, text string
}

// turn gives what is new, and what has been said after that. A volume that is
// healthy when it is first seen is no news.
func (st standing) turn(s seen) (standing, []news) {
	if s.verdict != healer.Abnormal {
		healthy := standing{noted: st.noted}
		switch {
		case s.verdict == healer.Healed:
			return healthy, []news{{reasonHealed, corev1.EventTypeNormal, s.text}}
		case st.abnormal:
			return healthy, []news{{reasonHealthy, corev1.EventTypeNormal, s.text}}
		}
		return healthy, nil
	}
	var all []news
	if !st.abnormal || st.reasons != s.reasons {
		all = append(all, news{reasonAbnormal, corev1.EventTypeWarning, s.text})
	}
	st.abnormal, st.reasons = true, s.reasons
	// Nothing refused says nothing: a look alone tries no step.
	if s.refusals != "" && s.refusals != st.refusals {
		all = append(all, news{reasonRefused, corev1.EventTypeWarning, s.refusalText})
		st.refusals = s.refusals
	}
	return st, all
}
