package kube

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
)

// ClusterConfig is what a Cluster is made of.
type ClusterConfig struct {
	Client *Client
	// Node is this node's name.
	Node string
	// Namespace and ConfigMap name the object with the cluster's settings.
	Namespace string
	ConfigMap string
	// Staleness is how long what was true counts when the API does not answer.
	Staleness time.Duration
	// DriverGrace is how long heals wait for a driver that is not ready.
	DriverGrace time.Duration
}

// Cluster is what the API says of this node: its pods, their claims and volumes,
// who is attached, and what is allowed.
type Cluster struct {
	cfg    ClusterConfig
	client *Client

	pods, node, volumes, claims, classes, configMap *feed
	// What is asked for anew before a step, by all who need it at once.
	attachments *shared[[]attachment]
	switches    *shared[*corev1.ConfigMap]

	// begun closes when the first word on everything is there, or late.
	begun   chan struct{}
	heart   heart
	drivers drivers

	mu sync.Mutex
	// settings are what parsed says.
	settings settings
	parsed   *corev1.ConfigMap
	// gone is true while there is no ConfigMap any more.
	gone bool
}

// NewCluster checks cfg. Nothing is known until Run.
func NewCluster(cfg ClusterConfig) (*Cluster, error) {
	switch {
	case cfg.Client == nil || cfg.Node == "" || cfg.Namespace == "" || cfg.ConfigMap == "":
		return nil, errors.New("kube: client, node, namespace and config map are required")
	case cfg.Staleness <= 0 || cfg.DriverGrace < 0:
		return nil, errors.New("kube: the staleness must be positive, the driver's grace not negative")
	}
	c := &Cluster{cfg: cfg, client: cfg.Client, begun: make(chan struct{}), settings: defaultSettings()}
	c.attachments, c.switches = newShared[[]attachment](), newShared[*corev1.ConfigMap]()
	for _, one := range []struct {
		feed   **feed
		source source
	}{
		{&c.pods, c.client.podsOn(cfg.Node)},
		{&c.node, c.client.nodeNamed(cfg.Node)},
		{&c.volumes, c.client.persistentVolumes()},
		{&c.claims, c.client.claims()},
		{&c.classes, c.client.meta(request{Group: storagev1.GroupName, Resource: "storageclasses"})},
		{&c.configMap, c.client.configMap(cfg.Namespace, cfg.ConfigMap)},
	} {
		var err error
		if *one.feed, err = newFeed(one.source); err != nil {
			return nil, err
		}
	}
	if err := c.onChange(c.configMap, func(o any) bool {
		if m, ok := o.(*corev1.ConfigMap); ok {
			c.hear(m) // it may be gone again by the time that somebody looks
		}
		return true
	}); err != nil {
		return nil, err
	}
	return c, c.onChange(c.pods, func(o any) bool {
		pod, ok := o.(*corev1.Pod)
		return !ok || ownedByDaemonSet(pod)
	})
}

// onChange has the drivers' pods looked at after each change that matters for
// them.
func (c *Cluster) onChange(f *feed, matters func(any) bool) error {
	_, err := f.informer.AddEventHandler(cache.FilteringResourceEventHandler{
		FilterFunc: matters,
		Handler: cache.ResourceEventHandlerFuncs{
			AddFunc:    func(any) { c.readDrivers() },
			UpdateFunc: func(any, any) { c.readDrivers() },
			DeleteFunc: func(any) { c.readDrivers() },
		},
	})
	if err != nil {
		return fmt.Errorf("watch %s: %w", f.source.what.Resource, err)
	}
	return nil
}

func (c *Cluster) feeds() []*feed {
	return []*feed{c.pods, c.node, c.volumes, c.claims, c.classes, c.configMap}
}

// Run keeps it up to date until ctx ends, and returns when all has stopped.
func (c *Cluster) Run(ctx context.Context) {
	// What client-go logs by itself is about its own inner life.
	quiet := klog.NewContext(ctx, klog.FromContext(ctx).V(quietVerbosity))
	var wg sync.WaitGroup
	for _, f := range c.feeds() {
		wg.Go(func() { f.run(quiet) })
	}
	wg.Go(func() { c.beat(ctx) })
	wg.Go(func() { c.begin(ctx) })
	wg.Wait()
}

const quietVerbosity = 5

// current fails when what the cluster wants is not known as of lately.
func (c *Cluster) current() error {
	// The heart first: if nothing answers, its word says most.
	if err := c.heart.trouble(c.cfg.Staleness); err != nil {
		return fmt.Errorf("what the cluster wants is not known: %w", err)
	}
	for _, f := range c.feeds() {
		if err := f.trouble(c.cfg.Staleness); err != nil {
			return fmt.Errorf("what the cluster wants is not known: %w", err)
		}
	}
	return nil
}

// settled waits for the first word on everything, good or bad: for a moment
// after the start, nobody knows what must not be looked at.
func (c *Cluster) settled(ctx context.Context) {
	select {
	case <-c.begun:
	case <-ctx.Done():
	}
}

// begin ends the wait of all who ask right after the start.
func (c *Cluster) begin(ctx context.Context) {
	defer close(c.begun)
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	for _, f := range c.feeds() {
		f.settled(ctx)
	}
	select {
	case <-c.heart.first():
	case <-ctx.Done():
	}
}

func one[T any](f *feed, key string) (T, bool) {
	o, found, err := f.informer.GetIndexer().GetByKey(key)
	t, ok := o.(T)
	return t, found && ok && err == nil
}

func indexed[T any](f *feed, index, key string) []T {
	objects, err := f.informer.GetIndexer().ByIndex(index, key)
	if err != nil {
		return nil
	}
	list := make([]T, 0, len(objects))
	for _, o := range objects {
		if t, ok := o.(T); ok {
			list = append(list, t)
		}
	}
	return list
}

func (c *Cluster) pod(uid string) (*corev1.Pod, bool) {
	if uid == "" {
		return nil, false
	}
	found := indexed[*corev1.Pod](c.pods, byUID, uid)
	if len(found) == 0 {
		return nil, false
	}
	return found[0], true
}

// claimOf gives the claim that a volume is bound to. Another one of that name may
// be a later one, with another volume.
func (c *Cluster) claimOf(pv *volume) (*named, bool) {
	claim, known := one[*named](c.claims, pv.claim)
	return claim, known && claim.uid == pv.claimUID
}
