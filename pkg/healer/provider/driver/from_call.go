package driver

import (
	"context"
	"errors"
	"fmt"

	"github.com/csi-addons/node-healer/pkg/healer"
)

// FromCall is the Stager where no Kubernetes API is asked: everything but the order comes
// from the call.
type FromCall struct {
	// Orders has the drivers that are told to stage volumes anew.
	Orders map[string]healer.RestageOrder
}

// Order implements Stager.
func (f FromCall) Order(driver string) (healer.RestageOrder, error) {
	if o, known := f.Orders[driver]; known {
		return o, nil
	}
	return "", fmt.Errorf("driver %s is not switched on: see docs/restage.md for what to test first, then --restage-driver %s=ORDER", healer.QuoteName(driver), healer.QuoteName(driver))
}

// Request implements Stager.
func (FromCall) Request(_ context.Context, c healer.Case, _ healer.MountPoint) (healer.StageRequest, error) {
	v := c.Volume
	switch {
	case v.Capability == nil:
		return healer.StageRequest{}, errors.New("the call has no volume_capability, without which the driver stages nothing")
	case v.MountGroup != "":
		return healer.StageRequest{}, errors.New("the call has a volume_mount_group, which only kubelet knows to apply")
	}
	return healer.StageRequest{
		AccessMode: v.Capability.AccessMode, FSType: v.Capability.FSType, MountFlags: v.MountFlags,
		VolumeContext: v.Context, Secrets: v.Secrets,
	}, nil
}
