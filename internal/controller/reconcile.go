package controller

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sync/semaphore"
	"golang.org/x/time/rate"
	"google.golang.org/grpc/codes"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/csi-addons/node-healer/pkg/api/healerpb"
	"github.com/csi-addons/node-healer/pkg/api/v1alpha1"
)

// caller asks a node about a volume once. *gateways is one; tests have others.
type caller interface {
	call(ctx context.Context, node string, mode v1alpha1.Mode, req *healerpb.NodeHealerRequest, timeout time.Duration) outcome
}

// Reconciler runs VolumeHealJobs. Make it with New.
type Reconciler struct {
	cfg   Config
	nodes caller
	metrics
	// claims has the claims that a job works on, calls the calls to each node, and namespaces the
	// jobs at work of each namespace.
	claims, calls, namespaces *slots
	// pages has those who read pods take turns.
	pages *semaphore.Weighted
	// told bounds the events of jobs.
	told *rate.Limiter
}

const (
	// busyDelay is how long a job waits before it asks again for a worker, for its claim, or
	// for a call to its node, on average.
	busyDelay = time.Second
	// podDelay is how long a job waits before it looks again for a pod that will run.
	podDelay = 2 * time.Second
	// retryJitter spreads the tries of jobs that failed at the same time.
	retryJitter = 0.1
)

// Reconcile takes a job one step further: at most one node is tried, so that a job with
// many nodes does not keep others waiting. Of two jobs for one claim the other one comes
// back later.
func (r *Reconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	job := &v1alpha1.VolumeHealJob{}
	if err := r.cfg.Writer.Get(ctx, req.NamespacedName, job); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	// Half of the workers are for other namespaces, however long this one's volumes and lists of pods take.
	if !r.namespaces.take(job.Namespace) {
		return later(busyDelay), nil
	}
	defer r.namespaces.giveBack(job.Namespace)
	claim := job.Namespace + "/" + job.Spec.Target.PersistentVolumeClaim
	if !r.claims.take(claim) {
		return later(busyDelay), nil
	}
	defer r.claims.giveBack(claim)
	// The cache may not have what was written a moment ago.
	if err := r.cfg.Reader.Get(ctx, req.NamespacedName, job); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	job.Labels, job.Annotations, job.ManagedFields = nil, nil, nil // see StripJob
	switch {
	case job.DeletionTimestamp != nil:
		return ctrl.Result{}, nil
	case job.Status.Result != "":
		return r.expire(ctx, job)
	}
	p := &pass{Reconciler: r, job: job, saved: job.DeepCopy()}
	result, err := p.run(ctx)
	if err != nil && ctx.Err() == nil {
		err = p.stuck(ctx, err)
	}
	if end := (*ending)(nil); errors.As(err, &end) {
		// Whatever ends an eviction, its taint does not stay.
		if job.Spec.Mode == v1alpha1.ModeEvict {
			if err := p.cleanUp(ctx); err != nil {
				return ctrl.Result{}, err
			}
		}
		return p.end(ctx, end)
	}
	return result, err
}

// stuck has the job say what keeps it from its next step, and end when its time is over: what the
// API refuses for good would else be tried for ever, and nobody see why. The error is in the log: it may name
// what other tenants have. An eviction that is written down goes on: it ends by its own deadline, and its taint
// has to go first. When it is over its new pods have their time. A job that waits for evict.after goes on.
func (p *pass) stuck(ctx context.Context, err error) error {
	if end := (*ending)(nil); errors.As(err, &end) || errors.Is(err, errJobDeleted) {
		return err
	}
	why := "a request to the Kubernetes API failed; see the controller's log"
	if said := apierrors.APIStatus(nil); errors.As(err, &said) && said.Status().Details != nil {
		of := said.Status().Details
		why = fmt.Sprintf("the Kubernetes API answered %s for %s; see the controller's log", said.Status().Reason, schema.GroupResource{Group: of.Group, Resource: of.Kind})
	}
	if p.late(p.evictAfter(ctx)) {
		all, _, unread := p.readLedger(ctx)
		goesOn := func(e ledgerEntry) bool {
			return e.JobUID == p.job.UID && (e.open() || time.Since(time.Unix(e.End, 0)).Abs() < newPodPatience)
		}
		if p.job.Spec.Mode != v1alpha1.ModeEvict || unread == nil && !slices.ContainsFunc(all, goesOn) {
			return &ending{reason: ReasonDeadline, message: why}
		}
	}
	p.progress(ReasonAPIError, why)
	return errors.Join(err, p.save(ctx))
}

// expire deletes a job that has ended, when its time has come.
func (r *Reconciler) expire(ctx context.Context, job *v1alpha1.VolumeHealJob) (ctrl.Result, error) {
	ttl, ended := job.Spec.TTLSecondsAfterFinished, job.Status.CompletionTime
	if ttl == nil || ended == nil {
		return ctrl.Result{}, nil
	}
	if left := time.Until(ended.Add(time.Duration(*ttl) * time.Second)); left > 0 {
		return ctrl.Result{RequeueAfter: left}, nil
	}
	err := r.cfg.Writer.Delete(ctx, job, client.Preconditions{UID: &job.UID}, client.PropagationPolicy("Background"))
	return ctrl.Result{}, client.IgnoreNotFound(err)
}

func later(delay time.Duration) ctrl.Result {
	return ctrl.Result{RequeueAfter: wait.Jitter(delay/2, 1)}
}

// pass is one step of one job.
type pass struct {
	*Reconciler

	job *v1alpha1.VolumeHealJob
	// saved is the job as the API has it.
	saved *v1alpha1.VolumeHealJob
	// volume is known once the claim was read.
	volume volume
	// until is when the new pods of an eviction have to be healthy; zero: there was none.
	until time.Time
}

// run returns when to come back; an *ending ends the job.
func (p *pass) run(ctx context.Context) (ctrl.Result, error) {
	if p.job.Status.StartTime == nil {
		p.job.Status.StartTime = ptr.To(metav1.Now())
		p.progress(ReasonStarted, "the volume's nodes are asked")
	}
	var err error
	if p.volume, err = p.readVolume(ctx, p.job.Namespace, p.job.Spec.Target.PersistentVolumeClaim); err != nil {
		return ctrl.Result{}, err
	}
	if p.job.Spec.Mode == v1alpha1.ModeEvict {
		if done, result, err := p.evict(ctx); !done {
			return result, err
		}
	}
	now, err := p.readUsage(ctx, p.volume.claim)
	if err != nil {
		return ctrl.Result{}, err
	}
	if !p.until.IsZero() && len(now.running) == 0 {
		return p.awaitPod(ctx) // the new one
	}
	waits, err := follow(&p.job.Status, now)
	if err != nil {
		return ctrl.Result{}, err
	}
	if waits {
		return p.awaitPod(ctx)
	}
	// The start and the nodes are known before the first call: a controller that goes on
	// from here counts from the same time.
	if err := p.save(ctx); err != nil {
		return ctrl.Result{}, err
	}
	node, due := nextDue(p.job.Status.Nodes)
	if node == nil || time.Now().Before(due) {
		return p.pause(ctx)
	}
	return p.try(ctx, node, now.running[node.Node])
}

// try asks a node at each of its pods.
func (p *pass) try(ctx context.Context, node *v1alpha1.NodeStatus, pods []types.UID) (ctrl.Result, error) {
	if time.Now().After(p.deadline()) {
		return ctrl.Result{}, &ending{reason: ReasonDeadline, message: "node " + node.Node + " could not be tried in time"}
	}
	if !p.calls.take(node.Node) {
		return later(busyDelay), nil
	}
	defer p.calls.giveBack(node.Node)
	o := p.ask(ctx, node.Node, pods)
	if err := ctx.Err(); err != nil {
		return ctrl.Result{}, err // this process stops: the try does not count
	}
	if o.code == codes.NotFound.String() {
		now, err := p.readUsage(ctx, p.volume.claim)
		if err != nil {
			return ctrl.Result{}, err
		}
		if !slices.Equal(now.running[node.Node], pods) {
			return later(busyDelay), nil // the pod has gone meanwhile: see follow
		}
	}
	p.record(node, o)
	return p.pause(ctx)
}

// ask returns the worst outcome of all pods.
func (p *pass) ask(ctx context.Context, node string, pods []types.UID) (worst outcome) {
	for i, pod := range pods {
		if i > 0 && time.Now().After(p.deadline()) {
			if worst.abnormal != nil && !*worst.abnormal { // one that is sick is proof enough
				worst = hindered(ReasonDeadline, late, "%d of %d pods were not asked in time; before: %s", len(pods)-i, len(pods), worst.message)
			}
			break
		}
		o := p.nodes.call(ctx, node, p.job.Spec.Mode, p.volume.request(p.cfg.KubeletRoot, pod), p.timeout())
		if p.job.Spec.Mode != v1alpha1.ModeCheck && ptr.Deref(o.abnormal, false) {
			o.class = changing // a heal, or a new stage, should have helped
		}
		if i == 0 || o.weight() > worst.weight() {
			worst = o
		}
		if o.code == "" || o.code == codes.DeadlineExceeded.String() {
			break // no call was made, or the node is silent: so it would be for the next pod, for as long again
		}
	}
	return worst
}

// pause saves the status and returns when the next node is due; when none is, the job
// ends, which saves it.
func (p *pass) pause(ctx context.Context) (ctrl.Result, error) {
	node, due := nextDue(p.job.Status.Nodes)
	if node == nil {
		return ctrl.Result{}, p.verdict()
	}
	return ctrl.Result{RequeueAfter: max(time.Until(due), time.Millisecond)}, p.save(ctx)
}

// awaitPod comes back while a pod may still run that uses the volume.
func (p *pass) awaitPod(ctx context.Context) (ctrl.Result, error) {
	const message = "a pod that uses the volume is not running yet, or is ending"
	if time.Now().After(p.deadline()) {
		return ctrl.Result{}, &ending{reason: ReasonPodNotActive, message: message}
	}
	p.progress(ReasonPodNotActive, message)
	return ctrl.Result{RequeueAfter: podDelay}, p.save(ctx)
}
