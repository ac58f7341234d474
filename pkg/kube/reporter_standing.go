package kube

import (
	"maps"
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
	noted time.Time
	ill   illnesses
	// refused is what was said to be refused, by mount point, since it became ill.
	refused map[string]string
}

// news is one thing to say.
type news struct {
	reason, severity, text string
}

// turn gives what is new, and what has been said after that. A volume that is
// healthy when it is first seen is no news, and neither is one of its mount points that
// is, while another is not.
func (st standing) turn(r healer.Report, ill illnesses, words func(healer.Report) string) (standing, []news) {
	next := standing{noted: st.noted, ill: ill}
	if len(ill) > 0 {
		next.refused = st.refused
	}
	tell := func(reason, severity string) news {
		return news{reason, severity, line(r.Volume.Secrets.Redact(words(r)))}
	}
	switch v := r.Verdict(); {
	case v == healer.Healed:
		return next, []news{tell(reasonHealed, corev1.EventTypeNormal)}
	case v == healer.Healthy && len(st.ill) > 0 && len(ill) == 0:
		return next, []news{tell(reasonHealthy, corev1.EventTypeNormal)}
	case v == healer.Healthy:
		return next, nil
	}
	var all []news
	if ill.reasons() != st.ill.reasons() {
		all = append(all, tell(reasonAbnormal, corev1.EventTypeWarning))
	}
	// Nothing refused says nothing: a look alone tries no step.
	if same, text := refusalsOf(r); next.refuses(same) {
		all = append(all, news{reasonRefused, corev1.EventTypeWarning, text})
	}
	return next, all
}

// refuses takes note of what is refused, and is true if any of it is new.
func (st *standing) refuses(same map[string]string) (isNew bool) {
	all := map[string]string{}
	maps.Copy(all, st.refused)
	for mountPoint, what := range same {
		if all[mountPoint] != what && (all[mountPoint] != "" || len(all) < maxIll) {
			all[mountPoint], isNew = what, true
		}
	}
	st.refused = all
	return isNew
}
