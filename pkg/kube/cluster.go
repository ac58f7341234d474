package kube

import (
	"context"
	"errors"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
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
	// KubeletRoots are kubelet's directory as configured and without links.
	KubeletRoots []string
	// DriverGrace is how long heals wait for a driver that is not ready.
	DriverGrace time.Duration
}

// Cluster is what the API says of this node: its pods, their claims and volumes,
// who is attached, and what is allowed. It follows what belongs to this node, its
// pods, its Node and the settings, so that its costs do not grow with the cluster;
// all else is read by name.
type Cluster struct {
	cfg    ClusterConfig
	client *Client
	reader *reader

	pods, node, configMap *informer
	// podsChanged has room for one: a DaemonSet's pod, or the settings, changed.
	podsChanged chan struct{}
	// begun closes when the first lists are there, or late.
	begun   chan struct{}
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
	case len(cfg.KubeletRoots) == 0 || cfg.DriverGrace < 0:
		return nil, errors.New("kube: kubelet's root is required, and the driver's grace must not be negative")
	}
	c := &Cluster{cfg: cfg, client: cfg.Client, podsChanged: make(chan struct{}, 1), begun: make(chan struct{}), settings: defaultSettings()}
	c.drivers.reading = make(chan struct{}, 1)
	var errs [6]error
	named := func(name string) fields.Selector { return fields.OneTermEqualSelector(metav1.ObjectNameField, name) }
	c.pods, errs[0] = newInformer(c.client, podKind, "", fields.OneTermEqualSelector("spec.nodeName", cfg.Node), podIndexes())
	c.node, errs[1] = newInformer(c.client, nodeKind, "", named(cfg.Node), nil)
	c.configMap, errs[2] = newInformer(c.client, configMapKind, cfg.Namespace, named(cfg.ConfigMap), nil)
	if err := errors.Join(errs[:]...); err != nil {
		return nil, err
	}
	c.reader = newReader(c.client, c.pods, c.node, c.configMap)
	_, errs[3] = c.configMap.AddEventHandler(onChange(func(m *corev1.ConfigMap) {
		c.hear(m) // it may be gone again by the time that somebody looks
		c.wakeDrivers()
	}))
	_, errs[4] = c.pods.AddEventHandler(onChange(func(p *corev1.Pod) {
		if ownedByDaemonSet(p) {
			c.wakeDrivers()
		}
	}))
	_, errs[5] = c.pods.AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: c.claimsAnew})
	return c, errors.Join(errs[:]...)
}

// onChange has a function told of each object that comes, changes or goes.
func onChange[T any](changed func(T)) cache.ResourceEventHandlerFuncs {
	tell := func(o any) {
		if lost, is := o.(cache.DeletedFinalStateUnknown); is {
			o = lost.Obj
		}
		if t, ok := o.(T); ok {
			changed(t)
		}
	}
	return cache.ResourceEventHandlerFuncs{AddFunc: tell, UpdateFunc: func(_, o any) { tell(o) }, DeleteFunc: tell}
}

func (c *Cluster) wakeDrivers() {
	select {
	case c.podsChanged <- struct{}{}:
	default:
	}
}

func (c *Cluster) informers() []*informer { return []*informer{c.pods, c.node, c.configMap} }

// Run keeps it up to date until ctx ends, and returns when all has stopped.
func (c *Cluster) Run(ctx context.Context) {
	// What client-go logs by itself is about its own inner life.
	quiet := klog.NewContext(ctx, klog.FromContext(ctx).V(quietVerbosity))
	var wg sync.WaitGroup
	for _, i := range c.informers() {
		wg.Go(func() { i.RunWithContext(quiet) })
	}
	wg.Go(func() { c.followDrivers(ctx) })
	wg.Go(func() {
		defer close(c.begun)
		ctx, cancel := context.WithTimeout(ctx, askTime)
		defer cancel()
		cache.WaitForCacheSync(ctx.Done(), c.pods.HasSynced, c.node.HasSynced, c.configMap.HasSynced)
	})
	wg.Wait()
}

const quietVerbosity = 5

// finalized waits for the first lists, but not for long: for a moment after the
// start, nobody knows what must not be looked at.
func (c *Cluster) finalized(ctx context.Context) {
	select {
	case <-c.begun:
	case <-ctx.Done():
	}
}

// pod gives a pod of this node by its UID.
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

// NodeUID gives the UID of this node's object, as soon as it is known.
func (c *Cluster) NodeUID() (types.UID, bool) {
	node, known := one[*corev1.Node](c.node, c.cfg.Node)
	if !known {
		return "", false
	}
	return node.UID, true
}

// Here gives those of some pods that are on this node; false: nobody knows yet.
func (c *Cluster) Here(podUIDs []string) (here []string, known bool) {
	for _, uid := range podUIDs {
		if _, found := c.pod(uid); found {
			here = append(here, uid)
		}
	}
	return here, c.pods.listed() == nil
}

// Subjects gives the claim and the pods of a volume, as ReporterConfig.Find
// wants them: not yet known is false, a volume of which the cluster has no
// object included.
func (c *Cluster) Subjects(ctx context.Context, driver, volumeID string, podUIDs []string) (Subjects, bool) {
	var s Subjects
	for _, uid := range podUIDs {
		if pod, known := c.pod(uid); known {
			s.Pods = append(s.Pods, reference("Pod", pod))
		}
	}
	w := c.look(ctx, volumeName{driver: driver, handle: volumeID}, "")
	// A claim that no pod here uses is another node's to tell of.
	if len(w.volumes) == 1 && len(w.pods) > 0 && w.volumes[0].claim != nil {
		of := reference("PersistentVolumeClaim", w.volumes[0].claim)
		s.Claim = &of
	}
	return s, s.Claim != nil || len(s.Pods) > 0
}

func reference(kind string, o metav1.Object) corev1.ObjectReference {
	return corev1.ObjectReference{APIVersion: "v1", Kind: kind, Namespace: o.GetNamespace(), Name: o.GetName(), UID: o.GetUID()}
}

// claimsAnew has the claims of a pod that came read anew: another one of that name may
// have been there before, which no pod used any more.
func (c *Cluster) claimsAnew(o any) {
	p, ok := o.(*corev1.Pod)
	if !ok {
		return
	}
	for i := range p.Spec.Volumes {
		if claim := claimOf(p, &p.Spec.Volumes[i]); claim != "" {
			c.reader.forget(claimKind.resource, p.Namespace, claim)
		}
	}
}
