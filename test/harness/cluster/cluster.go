// Package cluster gives tests a Kubernetes API of their own: a real etcd and a
// real kube-apiserver with RBAC on, without controllers, scheduler or kubelets.
// What those would write, the tests write: see Create and the builders. It
// needs the programs that `make kubernetes` builds, and no root. StartWhole
// adds controllers and scheduler, for tests that have a kubelet.
//
// It is for what only a real API shows: who may do what, tokens, outages,
// objects that are going away. What can be shown with a fake client belongs
// into a test beside the code.
package cluster

import (
	"context"
	"crypto/rsa"
	"errors"
	"fmt"
	"os"
	"sync"
	"testing"
	"time"

	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/csi-addons/node-healer/test/harness"
)

// Cluster is a running control plane.
type Cluster struct {
	// dir holds keys, certificates, logs and etcd's data.
	dir      string
	programs string
	port     int
	etcdPort int
	// signer is the key of all service account tokens.
	signer *rsa.PrivateKey
	// authority signs all certificates; ca is its own.
	authority authority
	ca        []byte
	config    *rest.Config
	admin     kubernetes.Interface
	// dynamic is the same administrator's, for objects of any kind.
	dynamic dynamic.Interface
	// applied has the objects of manifests that kubectl has applied.
	applied map[string][]applied

	// whole is a cluster with controllers and scheduler.
	whole bool

	keeper     keeper
	etcd       *process
	api        *process
	controller *process
	scheduler  *process
}

// shared is the cluster of this test binary: a start takes seconds, which every
// test would pay. A failed one is not tried again.
var shared struct {
	sync.Mutex
	cluster *Cluster
	err     error
}

// Start returns the cluster of this test binary, which the first call starts.
// Without the programs the test skips, or fails where skipping is not allowed.
// The binary's TestMain has to call Stop.
func Start(tb testing.TB) *Cluster {
	tb.Helper()
	return startShared(tb, &Cluster{programs: needsPrograms(tb, "etcd", "kube-apiserver", "kubectl")})
}

// startShared starts a cluster, unless this test binary has one.
func startShared(tb testing.TB, c *Cluster) *Cluster {
	tb.Helper()
	shared.Lock()
	defer shared.Unlock()
	if shared.cluster == nil && shared.err == nil {
		if shared.err = c.start(); shared.err == nil {
			shared.cluster = c
		}
	}
	harness.Must(tb, shared.err)
	return shared.cluster
}

// Stop ends the cluster, if one was started, and removes what it wrote.
func Stop() {
	shared.Lock()
	defer shared.Unlock()
	if shared.cluster != nil {
		shared.cluster.stop()
		shared.cluster = nil
	}
}

func (c *Cluster) start() (err error) {
	c.keeper = newKeeper()
	defer func() {
		if err != nil {
			c.stop()
			err = fmt.Errorf("start a control plane: %w", err)
		}
	}()
	if c.dir, err = os.MkdirTemp(os.Getenv("TEST_SCRATCH"), "node-healer-cluster-"); err != nil {
		return err
	}
	if c.port, err = harness.FreePorts(3); err != nil {
		return err
	}
	c.etcdPort = c.port + 1 // and the one after it for its peers
	if err := c.issue(); err != nil {
		return err
	}
	if c.admin, err = kubernetes.NewForConfig(c.config); err != nil {
		return err
	}
	if c.dynamic, err = dynamic.NewForConfig(c.config); err != nil {
		return err
	}
	if c.etcd, err = c.startEtcd(); err != nil {
		return err
	}
	if c.api, err = c.startAPI(); err != nil {
		return err
	}
	if err := c.ready(c.api); err != nil || !c.whole {
		return err
	}
	return c.startControllers()
}

func (c *Cluster) stop() {
	c.scheduler.kill()
	c.controller.kill()
	c.api.kill()
	c.etcd.kill()
	c.keeper.close()
	_ = os.RemoveAll(c.dir)
}

// ready waits until the API says that it is, roles and all.
func (c *Cluster) ready(api *process) error {
	ctx, cancel := context.WithTimeout(context.Background(), harness.Patience)
	defer cancel()
	for {
		_, err := c.admin.Discovery().RESTClient().Get().AbsPath("/readyz").DoRaw(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-api.ended:
			return fmt.Errorf("kube-apiserver ended: %w\n%s", api.err, api.log())
		case <-ctx.Done():
			return errors.Join(err, ctx.Err(), errors.New(api.log()))
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// URL is where the API is.
func (c *Cluster) URL() string { return c.config.Host }

// CA is the certificate, PEM, that the API's own is signed with.
func (c *Cluster) CA() []byte { return c.ca }

// Admin is a client that may do everything.
func (c *Cluster) Admin() kubernetes.Interface { return c.admin }

// Dynamic is the same for kinds that have no Go type here.
func (c *Cluster) Dynamic() dynamic.Interface { return c.dynamic }
