package nodeserver

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/csi-addons/node-healer/pkg/healer"
)

// NodeGetStorageHealth implements csi.NodeServer. It asks no storage anything:
// a call that names no volume must not touch one. It tells what the last calls
// for volumes met, where two or more of them lie on one backend and are ill of
// the same.
func (n csiNode) NodeGetStorageHealth(ctx context.Context, req *csi.NodeGetStorageHealthRequest) (*csi.NodeGetStorageHealthResponse, error) {
	if err := n.offered(); err != nil {
		return nil, toStatus(ctx, err, nil)
	}
	if err := smallMap(fieldSecrets, req.GetSecrets()); err != nil {
		return nil, toStatus(ctx, err, req.GetSecrets())
	}
	return &csi.NodeGetStorageHealthResponse{BackendHealth: storageHealth(n.server.seen.lately(time.Now()))}, nil
}

// shared is one reason at several volumes of one backend.
type shared struct {
	backend backend
	reason  healer.Reason
	sick    int // volumes with the reason
	of      int // volumes that were seen on the backend
	status  csi.StorageHealthErrorType
}

// storageHealth puts what volumes have in common as CSI wants it: each status
// and reason once, for however many backends.
func storageHealth(seen []recentReport) []*csi.NodeGetStorageHealthResponse_StorageBackendHealth {
	type key struct {
		status csi.StorageHealthErrorType
		reason healer.Reason
	}
	by := map[key][]shared{}
	for _, s := range commonTroubles(seen) {
		k := key{s.status, s.reason}
		by[k] = append(by[k], s)
	}
	order := slices.SortedFunc(maps.Keys(by), func(a, b key) int {
		return cmp.Or(cmp.Compare(b.status, a.status), cmp.Compare(a.reason, b.reason))
	})
	var entries []*csi.NodeGetStorageHealthResponse_StorageBackendHealth
	for _, k := range order {
		s := by[k]
		slices.SortFunc(s, func(a, b shared) int {
			return cmp.Or(cmp.Compare(b.sick, a.sick), strings.Compare(a.backend.String(), b.backend.String()))
		})
		worst := fmt.Sprintf("%d of %d volumes on %s", s[0].sick, s[0].of, s[0].backend)
		entries = append(entries, &csi.NodeGetStorageHealthResponse_StorageBackendHealth{
			Status: k.status, Reason: oneLine(string(k.reason), maxReasonBytes), Message: shortText(worst, len(s), "backends"),
		})
	}
	return entries
}

// commonTroubles finds the reasons that two or more volumes of one backend have.
func commonTroubles(seen []recentReport) []shared {
	type key struct {
		backend backend
		reason  healer.Reason
	}
	of, lost := map[backend]int{}, map[backend]int{}
	sick, degraded := map[key]int{}, map[key]bool{}
	for _, s := range seen {
		for _, b := range s.backends {
			of[b.backend]++
			inaccessible := false
			for _, t := range b.troubles {
				k := key{b.backend, t.reason}
				sick[k]++
				degraded[k] = degraded[k] || t.status != healer.Inaccessible
				inaccessible = inaccessible || t.status == healer.Inaccessible
			}
			if inaccessible {
				lost[b.backend]++
			}
		}
	}
	var found []shared
	for k, n := range sick {
		if n < 2 {
			continue
		}
		s := shared{backend: k.backend, reason: k.reason, sick: n, of: of[k.backend], status: csi.StorageHealthErrorType_STORAGE_UNREACHABLE}
		// One volume that can still be used shows that the backend is there.
		if degraded[k] || lost[k.backend] < of[k.backend] {
			s.status = csi.StorageHealthErrorType_STORAGE_DEGRADED
		}
		found = append(found, s)
	}
	return found
}
