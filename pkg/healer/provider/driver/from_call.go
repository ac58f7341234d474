package driver

import (
	"context"
	"errors"
	"fmt"

	"k8s.io/utils/lru"

	"github.com/csi-addons/node-healer/pkg/healer"
)

// FromCall is the Stager where no Kubernetes API is asked: everything but the order comes
// from the call, or without a call from the last one that named the volume. Secrets are
// not remembered.
type FromCall struct {
	orders map[string]healer.RestageOrder
	// last has what the last call said, by volumeOf.
	last *lru.Cache
}

// NewFromCall takes the drivers that are told to stage volumes anew.
func NewFromCall(orders map[string]healer.RestageOrder) FromCall {
	return FromCall{orders: orders, last: lru.New(maxVolumes)}
}

// Remember keeps what a call says of a volume.
func (f FromCall) Remember(c healer.Case) {
	if v := c.Volume; v.Capability != nil {
		f.last.Add(keyOf(c), healer.Volume{Capability: v.Capability, MountFlags: v.MountFlags, MountGroup: v.MountGroup, Context: v.Context})
	}
}

// Order implements Stager.
func (f FromCall) Order(driver string) (healer.RestageOrder, error) {
	if o, known := f.orders[driver]; known {
		return o, nil
	}
	return "", fmt.Errorf("driver %s is not switched on: see docs/restage.md for what to test first, then --restage-driver %s=ORDER", healer.QuoteName(driver), healer.QuoteName(driver))
}

// Request implements Stager.
func (f FromCall) Request(ctx context.Context, c healer.Case, staged healer.MountPoint) (healer.StageRequest, error) {
	r, err := f.Usage(ctx, c, staged)
	if r.AccessMode == "" {
		err = errors.New("no call had a volume_capability, without which the driver stages nothing")
	}
	return r, err
}

// Usage implements Stager.
func (f FromCall) Usage(_ context.Context, c healer.Case, _ healer.MountPoint) (healer.StageRequest, error) {
	v := c.Volume
	if last, known := f.last.Get(keyOf(c)); known && v.Unasked {
		v = last.(healer.Volume)
	}
	r := healer.StageRequest{Called: !c.Volume.Unasked, MountFlags: v.MountFlags, FSGroup: v.MountGroup != "", VolumeContext: v.Context, Secrets: v.Secrets}
	if u := v.Capability; u != nil {
		r.AccessMode, r.FSType, r.Block = u.AccessMode, u.FSType, u.Access == healer.AccessBlock
	}
	return r, nil
}
