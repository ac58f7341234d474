package cluster

import (
	"context"
	"errors"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	expiring "k8s.io/apimachinery/pkg/util/cache"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	"k8s.io/utils/lru"

	"github.com/csi-addons/node-healer/internal/wanted"
	"github.com/csi-addons/node-healer/pkg/facts"
	"github.com/csi-addons/node-healer/pkg/facts/layout"
)

// clientGoVerbosity is the level from which on client-go's own messages, which
// concern its internals, are logged.
const clientGoVerbosity = 5

// Config configures a Cluster. All fields but Access and Kubeconfig are required.
type Config struct {
	// Access says how to reach the API; nil: Kubeconfig does.
	Access *rest.Config
	// Kubeconfig is a file that says how to reach the API; empty: the service account of
	// our own pod.
	Kubeconfig string
	// Version goes into the user agent.
	Version  string
	NodeName string
	// Namespace and ConfigMap name the object with the cluster's settings.
	Namespace, ConfigMap string
	// Node knows kubelet's paths and what runs in pods, and finds the containers that use a volume;
	// *node.Node is the real one.
	Node interface {
		Kubelet() layout.Kubelet
		RealPath(path string) string
		InPods(ctx context.Context) ([]facts.Container, error)
		wanted.Finder
	}
	// DriverGrace is how long heals wait for a driver that is not ready; 0: not at all.
	DriverGrace time.Duration
	// Silent writes nothing to the API: another program reports the same volumes.
	Silent bool
}

// Cluster knows what the API says of this node: its pods, their claims and
// volumes, and the settings. Informers follow what belongs to this node, all
// else is read by name. It is the healer.Gate of a cluster.
type Cluster struct {
	cfg    Config
	client *client
	reader *reader

	pods, node, configMap *informer
	// synced is closed when the first lists have arrived, or are late.
	synced chan struct{}

	settings settingsStore
	drivers  drivers
	// driversChanged holds one value after a DaemonSet's pod or the settings changed.
	driversChanged chan struct{}
	reporter       *reporter
	// gone has, by UID, the pods with hostPID that have ended here or were deleted.
	gone *lru.Cache
	// inputs has, by volumeKey, what was last read for drivers that are to stage a volume anew.
	inputs *expiring.LRUExpireCache
}

// New returns a Cluster that knows nothing, and sends nothing, until Run.
func New(cfg Config) (*Cluster, error) {
	if cfg.NodeName == "" || cfg.Namespace == "" || cfg.ConfigMap == "" || cfg.Node == nil || cfg.DriverGrace < 0 {
		return nil, errors.New("cluster: the node, its name, namespace and config map are required, and the driver's grace must not be negative")
	}
	client, err := newClient(cfg)
	if err != nil {
		return nil, err
	}
	c := &Cluster{
		cfg: cfg, client: client, synced: make(chan struct{}), settings: settingsStore{settings: defaultSettings()},
		drivers: drivers{seen: map[string]driverPods{}}, driversChanged: make(chan struct{}, 1),
		gone: lru.New(maxCached), inputs: expiring.NewLRUExpireCache(maxCached),
	}
	c.reporter = newReporter(client, cfg.NodeName, c)
	c.reporter.silent = cfg.Silent
	named := func(name string) fields.Selector { return fields.OneTermEqualSelector(metav1.ObjectNameField, name) }
	// A pod that has ended wants no volume, and may stay for ever.
	live := fields.AndSelectors(fields.OneTermEqualSelector("spec.nodeName", cfg.NodeName),
		fields.OneTermNotEqualSelector("status.phase", string(corev1.PodSucceeded)), fields.OneTermNotEqualSelector("status.phase", string(corev1.PodFailed)))
	podChanges := cache.ResourceEventHandlerFuncs{
		AddFunc: func(o any) {
			// A claim of the same name may have been read before, from which no pod of this node
			// was left.
			for _, claim := range claimsOf(o.(*corev1.Pod)) {
				c.reader.forget(claimKind.Resource, claim)
			}
			c.podChanged(o)
		},
		UpdateFunc: func(_, o any) { c.podChanged(o) },
		DeleteFunc: func(o any) {
			if missed, is := o.(cache.DeletedFinalStateUnknown); is { // by the watch
				o = missed.Obj
			}
			if p, is := o.(*corev1.Pod); is {
				c.reader.forget(podKind.Resource, p.Namespace+"/"+p.Name)
				if p.Spec.HostPID {
					c.gone.Add(string(p.UID), nil)
				}
			}
			c.podChanged(o)
		},
	}
	// New settings are taken over now: they may be deleted again before they are needed.
	newSettings := func(o any) {
		c.settings.update(o.(*corev1.ConfigMap), false)
		c.wake()
	}
	settingsChanges := cache.ResourceEventHandlerFuncs{
		AddFunc:    newSettings,
		UpdateFunc: func(_, o any) { newSettings(o) },
		DeleteFunc: func(any) {
			klog.InfoS("The settings of the cluster are gone, and the last ones hold", "configMap", klog.KRef(cfg.Namespace, cfg.ConfigMap))
		},
	}
	var errs [3]error
	c.pods, errs[0] = newInformer(client, podKind, "", live, podIndexes, podChanges)
	c.node, errs[1] = newInformer(client, nodeKind, "", named(cfg.NodeName), nil, cache.ResourceEventHandlerFuncs{})
	c.configMap, errs[2] = newInformer(client, configMapKind, cfg.Namespace, named(cfg.ConfigMap), nil, settingsChanges)
	c.reader = newReader(client, c.pods, c.node, c.configMap)
	return c, errors.Join(errs[:]...)
}

// podChanged has the drivers' pods read again if the pod may be a driver's.
func (c *Cluster) podChanged(o any) {
	if p, is := o.(*corev1.Pod); !is || ownedByDaemonSet(p) {
		c.wake()
	}
}

func (c *Cluster) wake() {
	select {
	case c.driversChanged <- struct{}{}:
	default:
	}
}

// Run keeps the informers up to date, follows the drivers' pods and sends what is to be
// reported until ctx ends, and returns when all of that has stopped.
func (c *Cluster) Run(ctx context.Context) {
	quiet := klog.NewContext(ctx, klog.FromContext(ctx).V(clientGoVerbosity))
	var wg sync.WaitGroup
	for _, i := range []*informer{c.pods, c.node, c.configMap} {
		wg.Go(func() { i.RunWithContext(quiet) })
	}
	wg.Go(func() {
		defer close(c.synced)
		ctx, cancel := context.WithTimeout(ctx, requestTimeout)
		defer cancel()
		cache.WaitForCacheSync(ctx.Done(), c.pods.HasSynced, c.node.HasSynced, c.configMap.HasSynced)
	})
	wg.Go(func() {
		c.waitForSync(ctx) // the settings say whose pods count
		for {
			select {
			case <-ctx.Done():
				return
			case <-c.driversChanged:
				_, _ = c.driverAway(ctx, "", false) // records them all
			}
		}
	})
	wg.Go(func() { c.reporter.run(ctx) })
	wg.Wait()
}

// waitForSync waits for the first lists, for at most two seconds after Run:
// before them it is not known which volumes must not be inspected.
func (c *Cluster) waitForSync(ctx context.Context) {
	select {
	case <-c.synced:
	case <-ctx.Done():
	}
}

// ownNode returns this node's object as the informer has it; nil while it is unknown, or after it
// was deleted.
func (c *Cluster) ownNode() *corev1.Node {
	object, _, _ := c.node.GetIndexer().GetByKey(c.cfg.NodeName) //nolint:errcheck // a store has none
	node, _ := object.(*corev1.Node)
	return node
}

// pod returns the pod of this node with a UID, as the informer has it; nil: it has none.
func (c *Cluster) pod(uid string) *corev1.Pod {
	if found := c.podsBy(byUID, uid); uid != "" && len(found) > 0 {
		return found[0]
	}
	return nil
}

// configMapName returns namespace and name of the settings, as messages show them.
func (c *Cluster) configMapName() string {
	return "ConfigMap " + c.cfg.Namespace + "/" + c.cfg.ConfigMap
}
