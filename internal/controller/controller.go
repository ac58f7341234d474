package controller

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/semaphore"
	"golang.org/x/time/rate"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/tools/events"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	runtimecontroller "sigs.k8s.io/controller-runtime/pkg/controller"
	runnable "sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/predicate"

	"github.com/csi-addons/node-healer/pkg/api/v1alpha1"
)

// Name is what the controller is called in events, leases and metrics.
const Name = "node-healer-controller"

// Config is everything a Reconciler needs; cmd/node-healer-controller checks what its flags say.
type Config struct {
	// Reader reads from the API itself. A cache would have to hold every pod of the
	// cluster, and may be older than the pod that has just moved.
	Reader client.Reader
	// Writer makes, writes and deletes jobs, and reads them from a cache.
	Writer client.Client
	Events events.EventRecorder
	// Metrics gets what is counted.
	Metrics prometheus.Registerer
	// KubeletRoot is kubelet's root directory on the nodes.
	KubeletRoot string
	Gateways    Gateways
	// ConfigMap has the cluster's settings, in the namespace of the gateways.
	ConfigMap string
	// MaxCalls bounds the calls at one time, of which jobs of one namespace make half,
	// MaxCallsPerNode those to one node.
	MaxCalls, MaxCallsPerNode int
}

// New returns a Reconciler of VolumeHealJobs.
func New(cfg Config) *Reconciler {
	return &Reconciler{
		cfg: cfg, nodes: newGateways(cfg.Reader, cfg.Writer, cfg.Gateways), metrics: newMetrics(cfg.Metrics),
		claims: newSlots(1), calls: newSlots(cfg.MaxCallsPerNode), namespaces: newSlots(half(cfg.MaxCalls)), pages: semaphore.NewWeighted(1),
		told: rate.NewLimiter(eventsPerSecond, eventsAtOnce),
	}
}

// StripJob drops what Reconcile and search do not read of a cached job: who creates jobs may fill
// the metadata of each with a megabyte, and so have the controller killed for its memory.
func StripJob(object any) (any, error) {
	if job, is := object.(*v1alpha1.VolumeHealJob); is {
		job.ObjectMeta = metav1.ObjectMeta{
			Namespace: job.Namespace, Name: job.Name, UID: job.UID, ResourceVersion: job.ResourceVersion, Generation: job.Generation, DeletionTimestamp: job.DeletionTimestamp,
		}
		job.Status = v1alpha1.VolumeHealJobStatus{Result: job.Status.Result}
	}
	return object, nil
}

// SetUp has a manager run the reconciler. Changes of a job's status do not wake it: it
// has made them itself.
func (r *Reconciler) SetUp(manager ctrl.Manager) error {
	for _, p := range []struct {
		every time.Duration
		what  string
		do    func(context.Context) error
	}{
		{sweepEvery, "look for taints that were left", r.sweep},
		{searchEvery, "look for volumes that only new pods mend", r.search},
	} {
		// At once, and then again and again; as all that a manager runs, only where it leads.
		err := manager.Add(runnable.RunnableFunc(func(ctx context.Context) error {
			wait.NonSlidingUntilWithContext(ctx, func(ctx context.Context) {
				if err := p.do(ctx); err != nil && ctx.Err() == nil {
					klog.ErrorS(err, "Cannot "+p.what)
				}
			}, p.every)
			return nil
		}))
		if err != nil {
			return err
		}
	}
	return ctrl.NewControllerManagedBy(manager).
		Named(Name).
		For(&v1alpha1.VolumeHealJob{}, builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		WithOptions(runtimecontroller.Options{MaxConcurrentReconciles: r.cfg.MaxCalls}).
		Complete(r)
}
