package nodeserver

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/csi-addons/node-healer/pkg/healer"
	"github.com/csi-addons/node-healer/pkg/healer/provider/network"
	"github.com/csi-addons/node-healer/pkg/printable"
)

// NodeGetStorageHealth implements csi.NodeServer. It contacts no storage: a call
// that names no volume must not touch one. It answers from the recent reports, where
// two or more volumes lie on one backend and have the same reason.
func (n csiNode) NodeGetStorageHealth(_ context.Context, req *csi.NodeGetStorageHealthRequest) (*csi.NodeGetStorageHealthResponse, error) {
	if err := n.offered(); err != nil {
		return nil, toStatus(err, nil)
	}
	if err := smallMap(fieldSecrets, req.GetSecrets()); err != nil {
		return nil, toStatus(err, req.GetSecrets())
	}
	shared := network.SharedTroubles(n.server.recent.backends())
	return &csi.NodeGetStorageHealthResponse{BackendHealth: storageEntries(shared)}, nil
}

// storageEntries puts shared troubles in the form that CSI wants: each status and
// reason once, for however many backends, the worst first.
func storageEntries(shared []network.Shared) []*csi.NodeGetStorageHealthResponse_StorageBackendHealth {
	type key struct {
		status csi.StorageHealthErrorType
		reason healer.Reason
	}
	byKey := map[key][]network.Shared{}
	for _, s := range shared {
		k := key{csi.StorageHealthErrorType_STORAGE_DEGRADED, s.Reason}
		if s.Unreachable {
			k.status = csi.StorageHealthErrorType_STORAGE_UNREACHABLE
		}
		byKey[k] = append(byKey[k], s)
	}
	order := slices.SortedFunc(maps.Keys(byKey), func(a, b key) int {
		return cmp.Or(cmp.Compare(b.status, a.status), cmp.Compare(a.reason, b.reason))
	})
	var entries []*csi.NodeGetStorageHealthResponse_StorageBackendHealth
	for _, k := range order {
		backends := byKey[k]
		worst := slices.MinFunc(backends, func(a, b network.Shared) int {
			return cmp.Or(cmp.Compare(b.Sick, a.Sick), strings.Compare(a.Backend.String(), b.Backend.String()))
		})
		text := fmt.Sprintf("%d of %d volumes on %s", worst.Sick, worst.Of, worst.Backend)
		entries = append(entries, &csi.NodeGetStorageHealthResponse_StorageBackendHealth{
			Status: k.status, Reason: printable.Line(string(k.reason), maxReasonBytes), Message: shortText(text, len(backends), "backends"),
		})
	}
	return entries
}
