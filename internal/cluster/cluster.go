package cluster

import (
	"context"
	"errors"
	"sync"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
)

// clientGoVerbosity is the level from which on client-go's own messages, which
// concern its internals, are logged.
const clientGoVerbosity = 5

// ClusterConfig configures a Cluster. Every field is required.
type ClusterConfig struct {
	Client *Client
	// Node is this node's name.
	Node string
	// Namespace and ConfigMap name the object with the cluster's settings.
	Namespace, ConfigMap string
}

// Cluster knows what the API says of this node: its pods, their claims and
// volumes, and the settings. Informers follow what belongs to this node, all
// else is read by name.
type Cluster struct {
	cfg    ClusterConfig
	client *Client
	reader *reader

	pods, node, configMap *informer
	// synced is closed when the first lists have arrived, or are late.
	synced chan struct{}
}

// NewCluster returns a Cluster that knows nothing until Run.
func NewCluster(cfg ClusterConfig) (*Cluster, error) {
	if cfg.Client == nil || cfg.Node == "" || cfg.Namespace == "" || cfg.ConfigMap == "" {
		return nil, errors.New("kube: client, node, namespace and config map are required")
	}
	c := &Cluster{cfg: cfg, client: cfg.Client, synced: make(chan struct{})}
	var errs [4]error
	named := func(name string) fields.Selector { return fields.OneTermEqualSelector(metav1.ObjectNameField, name) }
	// A pod that has ended wants no volume, and may stay for ever.
	live := fields.AndSelectors(fields.OneTermEqualSelector("spec.nodeName", cfg.Node),
		fields.OneTermNotEqualSelector("status.phase", string(corev1.PodSucceeded)), fields.OneTermNotEqualSelector("status.phase", string(corev1.PodFailed)))
	c.pods, errs[0] = newInformer(c.client, podKind, "", live, podIndexes())
	c.node, errs[1] = newInformer(c.client, nodeKind, "", named(cfg.Node), nil)
	c.configMap, errs[2] = newInformer(c.client, configMapKind, cfg.Namespace, named(cfg.ConfigMap), nil)
	if err := errors.Join(errs[:]...); err != nil {
		return nil, err
	}
	c.reader = newReader(c.client, c.pods, c.node, c.configMap)
	_, errs[3] = c.pods.AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: c.forgetClaims})
	return c, errs[3]
}

// OnConfigMap has changed called for the settings whenever they come, change or
// go. It must be called before Run.
func (c *Cluster) OnConfigMap(changed func(*corev1.ConfigMap)) error {
	_, err := c.configMap.AddEventHandler(onChange(changed))
	return err
}

// OnDaemonSetPod has changed called for each pod of a DaemonSet on this node
// that comes, changes or goes. It must be called before Run.
func (c *Cluster) OnDaemonSetPod(changed func()) error {
	_, err := c.pods.AddEventHandler(onChange(func(p *corev1.Pod) {
		if ownedByDaemonSet(p) {
			changed()
		}
	}))
	return err
}

func onChange[T any](changed func(T)) cache.ResourceEventHandlerFuncs {
	handle := func(o any) {
		if deleted, is := o.(cache.DeletedFinalStateUnknown); is {
			o = deleted.Obj
		}
		if t, ok := o.(T); ok {
			changed(t)
		}
	}
	return cache.ResourceEventHandlerFuncs{AddFunc: handle, UpdateFunc: func(_, o any) { handle(o) }, DeleteFunc: handle}
}

// Run keeps the informers up to date until ctx ends, and returns when all of
// them have stopped.
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
	wg.Wait()
}

// WaitForSync waits for the first lists, for at most two seconds after Run:
// before them it is not known which volumes must not be inspected.
func (c *Cluster) WaitForSync(ctx context.Context) {
	select {
	case <-c.synced:
	case <-ctx.Done():
	}
}

// KnowsSettings reports whether the settings and this node's object were listed once.
func (c *Cluster) KnowsSettings() bool { return c.configMap.HasSynced() && c.node.HasSynced() }

// NodeName returns this node's name.
func (c *Cluster) NodeName() string { return c.cfg.Node }

// NodeUID returns the UID of this node's object, and false while it is unknown.
func (c *Cluster) NodeUID() (types.UID, bool) {
	node, known := one[*corev1.Node](c.node, c.cfg.Node)
	if !known {
		return "", false
	}
	return node.UID, true
}

// NodeLabels returns the labels of this node's object, and false while it is unknown.
func (c *Cluster) NodeLabels() (map[string]string, bool) {
	node, known := one[*corev1.Node](c.node, c.cfg.Node)
	if !known {
		return nil, false
	}
	return node.Labels, true
}

// ConfigMapName returns namespace and name of the settings, as messages show them.
func (c *Cluster) ConfigMapName() string {
	return "ConfigMap " + c.cfg.Namespace + "/" + c.cfg.ConfigMap
}

// ConfigMap returns the settings that the informer has.
func (c *Cluster) ConfigMap() (*corev1.ConfigMap, bool) {
	return one[*corev1.ConfigMap](c.configMap, c.cfg.Namespace+"/"+c.cfg.ConfigMap)
}

// Pod returns the pod of this node with a UID, as the informer has it.
func (c *Cluster) Pod(uid string) (*corev1.Pod, bool) {
	if uid == "" {
		return nil, false
	}
	found := indexed[*corev1.Pod](c.pods, byUID, uid)
	if len(found) == 0 {
		return nil, false
	}
	return found[0], true
}

// DaemonSetPods returns the pods of DaemonSets on this node.
func (c *Cluster) DaemonSetPods() []*corev1.Pod { return indexed[*corev1.Pod](c.pods, byDaemonSet, "") }

// PodsHere returns those of the given pods that are on this node, and false
// while the pods of this node are unknown.
func (c *Cluster) PodsHere(uids []string) (here []string, known bool) {
	for _, uid := range uids {
		if _, found := c.Pod(uid); found {
			here = append(here, uid)
		}
	}
	return here, c.pods.listed() == nil
}

// Subjects are the objects that a volume is reported on.
type Subjects struct {
	// Claim is nil when the volume has none, as a pod's inline volume.
	Claim *corev1.ObjectReference
	// Pods are those on this node that use the volume.
	Pods []corev1.ObjectReference
}

// Subjects returns the claim and the pods of a volume, and false when neither
// is known.
func (c *Cluster) Subjects(ctx context.Context, driver, volumeID string, podUIDs []string) (Subjects, bool) {
	var s Subjects
	for _, uid := range podUIDs {
		if pod, known := c.Pod(uid); known {
			s.Pods = append(s.Pods, reference("Pod", pod))
		}
	}
	w := c.Recall(ctx, VolumeName{Driver: driver, Handle: volumeID}, "")
	// A claim that no pod here uses is reported on by another node.
	if len(w.Volumes) == 1 && len(w.Pods) > 0 && w.Volumes[0].Claim != nil {
		claim := reference("PersistentVolumeClaim", w.Volumes[0].Claim)
		s.Claim = &claim
	}
	return s, s.Claim != nil || len(s.Pods) > 0
}

func reference(kind string, o metav1.Object) corev1.ObjectReference {
	return corev1.ObjectReference{APIVersion: "v1", Kind: kind, Namespace: o.GetNamespace(), Name: o.GetName(), UID: o.GetUID()}
}

// forgetClaims has the claims of a new pod read again: a claim of the same name
// may have been cached before, from which no pod of this node was left.
func (c *Cluster) forgetClaims(o any) {
	p, ok := o.(*corev1.Pod)
	if !ok {
		return
	}
	for i := range p.Spec.Volumes {
		if claim := ClaimOf(p, &p.Spec.Volumes[i]); claim != "" {
			c.reader.forget(claimKind.resource, p.Namespace, claim)
		}
	}
}
