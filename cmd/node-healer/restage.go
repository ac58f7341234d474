package main

import (
	"context"
	"errors"

	"github.com/csi-addons/node-healer/pkg/healer"
	"github.com/csi-addons/node-healer/pkg/healer/provider/driver"
)

// stager says which drivers stage volumes anew, and with what. It is made before the
// cluster, whose settings may name the reasons of all providers.
type stager struct {
	driver.Stager
}

func newStager(cfg config) *stager {
	if !cfg.standalone {
		return &stager{driver.Stager(noCluster{})}
	}
	orders := map[string]healer.RestageOrder{}
	for name, order := range cfg.restageDrivers {
		orders[name] = healer.RestageOrder(order) // as config checked it
	}
	return &stager{driver.FromCall{Orders: orders}}
}

// follow has the cluster say it, if there is one.
func (s *stager) follow(c *cluster) {
	if c != nil {
		s.Stager = c.policy
	}
}

// noCluster is the Stager where there is neither an API nor --standalone.
type noCluster struct{}

var errNoCluster = errors.New("there is no Kubernetes API to ask what the driver is to stage")

func (noCluster) Order(string) (healer.RestageOrder, error) { return "", errNoCluster }

func (noCluster) Request(context.Context, healer.Case, healer.MountPoint) (healer.StageRequest, error) {
	return healer.StageRequest{}, errNoCluster
}
