package network

import "github.com/csi-addons/node-healer/pkg/healer"

// Shared is one reason that several volumes of one backend have.
type Shared struct {
	Backend Backend
	Reason  healer.Reason
	// Sick is how many volumes have the reason, Of how many lie on the backend.
	Sick, Of int
	// Unreachable is true when no volume of the backend can be used.
	Unreachable bool
}

// SharedTroubles returns the reasons that two or more volumes of one backend have, in
// no order. Each element of volumes is what Of returned for one volume.
func SharedTroubles(volumes [][]Health) []Shared {
	type key struct {
		backend Backend
		reason  healer.Reason
	}
	total, lost := map[Backend]int{}, map[Backend]int{}
	sick, usable := map[key]int{}, map[key]bool{}
	for _, volume := range volumes {
		for _, h := range volume {
			total[h.Backend]++
			inaccessible := false
			for _, t := range h.Troubles {
				k := key{h.Backend, t.Reason}
				sick[k]++
				usable[k] = usable[k] || t.Status != healer.Inaccessible
				inaccessible = inaccessible || t.Status == healer.Inaccessible
			}
			if inaccessible {
				lost[h.Backend]++
			}
		}
	}
	var found []Shared
	for k, n := range sick {
		if n < 2 {
			continue
		}
		found = append(found, Shared{
			Backend: k.backend, Reason: k.reason, Sick: n, Of: total[k.backend],
			// One volume that can still be used shows that the backend is there.
			Unreachable: !usable[k] && lost[k.backend] == total[k.backend],
		})
	}
	return found
}
