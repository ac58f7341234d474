package main

import (
	"context"
	"errors"

	"github.com/csi-addons/node-healer/pkg/healer"
	"github.com/csi-addons/node-healer/pkg/healer/provider/driver"
)

// newStager returns what says which drivers stage volumes anew, and with what.
func newStager(cfg config) driver.Stager {
	if !cfg.standalone {
		return &clusterStager{noCluster{}}
	}
	orders := map[string]healer.RestageOrder{}
	for name, order := range cfg.restageDrivers {
		orders[name] = healer.RestageOrder(order) // as config checked it
	}
	return driver.NewFromCall(orders)
}

// clusterStager goes by the cluster. It is made before that, whose settings may name the
// reasons of all providers.
type clusterStager struct {
	driver.Stager
}

// stageBy has the cluster say it, if there is one.
func stageBy(s driver.Stager, c *cluster) {
	if later, is := s.(*clusterStager); is && c != nil {
		later.Stager = c.policy
	}
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
