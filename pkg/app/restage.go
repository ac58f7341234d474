package app

import (
	"context"
	"errors"

	"github.com/csi-addons/node-healer/internal/cluster"
	"github.com/csi-addons/node-healer/pkg/healer"
	"github.com/csi-addons/node-healer/pkg/healer/provider/driver"
)

// newStager returns what says which drivers stage volumes anew, and with what.
func newStager(cfg config, c *cluster.Cluster) driver.Stager {
	switch {
	case cfg.Standalone: // everything comes from the call
	case c != nil:
		return c
	default:
		return noCluster{}
	}
	orders := map[string]healer.RestageOrder{}
	for name, order := range cfg.restageDrivers {
		orders[name] = healer.RestageOrder(order) // as config checked it
	}
	return driver.NewFromCall(orders)
}

// noCluster is the Stager where there is neither an API nor --standalone.
type noCluster struct{}

var errNoCluster = errors.New("there is no Kubernetes API to ask what the driver is to stage")

func (noCluster) Order(string) (healer.RestageOrder, error) { return "", errNoCluster }

// Usage implements driver.Stager: all of it is optional.
func (noCluster) Usage(context.Context, healer.Case, healer.MountPoint) (healer.StageRequest, error) {
	return healer.StageRequest{}, nil
}

func (noCluster) Request(context.Context, healer.Case, healer.MountPoint) (healer.StageRequest, error) {
	return healer.StageRequest{}, errNoCluster
}
