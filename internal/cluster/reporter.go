package cluster

import (
	"context"
	"errors"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"
	"k8s.io/client-go/util/flowcontrol"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/klog/v2"
	"k8s.io/utils/lru"

	"github.com/csi-addons/node-healer/internal/retry"
	"github.com/csi-addons/node-healer/pkg/healer"
)

const (
	// maxVolumes bounds the volumes that are remembered. It is more than a node has:
	// what is forgotten is reported once more.
	maxVolumes = 2048
	// maxPending bounds the messages that wait to be recorded as events, each of at
	// most a kilobyte. What does not fit is reported at the next check.
	maxPending = 256
	// requestQPS and requestBurst hold for all requests of a node's reporter, so that
	// the API stays usable when all volumes of many nodes fail at once.
	requestQPS   = 10
	requestBurst = 30
	// holdRetries is how often a refused annotation keeps a volume's messages back,
	// for about half a minute: an API that has just started denies everything (403)
	// until it has read the roles, and client-go's recorder drops denied events.
	holdRetries = 5
)

// ReporterConfig configures a Reporter. Every field is required.
type ReporterConfig struct {
	Client *Client
	// Node is this node's name.
	Node string
	// Cluster knows the objects to report on; *Cluster is the real one.
	Cluster interface {
		NodeUID() (types.UID, bool)
		PodsHere(uids []string) (here []string, known bool)
		Subjects(ctx context.Context, driver, volumeID string, podUIDs []string) (Subjects, bool)
	}
}

// Reporter reports volumes to their users in the cluster. Make it with NewReporter.
type Reporter struct {
	cfg  ReporterConfig
	pace flowcontrol.RateLimiter
	// queue has the volumes that may have something to send.
	queue workqueue.TypedRateLimitingInterface[volumeKey]
	// logged is the last error that was logged.
	logged string

	mu sync.Mutex
	// volumes has a *volume by volumeKey, pending counts their messages.
	volumes *lru.Cache
	pending int
}

// volumeKey names a volume: two drivers may use the same id.
type volumeKey struct{ driver, id string }

// volume is what is known of one volume.
type volume struct {
	reported reported
	latest   check
	// messages wait to be recorded.
	messages []message
	// annotation is what the claim has.
	annotation annotation
	// failed is why the API refused the annotation; it is tried again later.
	failed string
}

// check is what the last check found, without anything of the request.
type check struct {
	at time.Time
	// state is that of the whole volume, and not only of the checked mount points.
	state string
	pods  []string
}

// NewReporter returns a Reporter that sends nothing before Run.
func NewReporter(cfg ReporterConfig) (*Reporter, error) {
	if cfg.Client == nil || cfg.Node == "" || cfg.Cluster == nil {
		return nil, errors.New("report: client, node and cluster are required")
	}
	r := &Reporter{
		cfg:   cfg,
		pace:  flowcontrol.NewTokenBucketRateLimiter(requestQPS, requestBurst),
		queue: workqueue.NewTypedRateLimitingQueue(workqueue.NewTypedItemExponentialFailureRateLimiter[volumeKey](retry.Transient.First, retry.Transient.Max)),
	}
	r.volumes = lru.NewWithEvictionFunc(maxVolumes, func(_ lru.Key, v any) { r.pending -= len(v.(*volume).messages) })
	return r, nil
}

// Note takes what a caller was told of a volume, and how to put that into words. It
// does not block and does not keep the report.
func (r *Reporter) Note(report healer.Report, words func(healer.Report) string) {
	key := volumeKey{driver: report.Driver, id: report.Volume.ID}
	r.mu.Lock()
	defer r.mu.Unlock()
	kept, known := r.volumes.Get(key)
	if !known {
		kept = &volume{}
		r.volumes.Add(key, kept)
	}
	v := kept.(*volume)
	conditions := v.reported.conditions.after(report, r.podsHere)
	v.latest = check{at: time.Now(), state: stateOf(conditions), pods: podsOf(report)}
	next, messages := v.reported.after(report, conditions, words)
	if r.pending+len(messages) > maxPending {
		messages = nil // reported stays as it was, so that the next check says it
	} else {
		v.reported, v.messages, r.pending = next, append(v.messages, messages...), r.pending+len(messages)
	}
	// A volume that failed is queued already, and waits for its next try.
	isDue := v.failed == "" && (len(v.messages) > 0 || !v.annotation.covers(v.latest))
	if (isDue || len(messages) > 0) && r.queue.Len() < maxVolumes {
		r.queue.Add(key)
	}
}

// with calls do for a volume that is remembered, with the lock held.
func (r *Reporter) with(key volumeKey, do func(*volume)) (known bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	v, known := r.volumes.Get(key)
	if known {
		do(v.(*volume))
	}
	return known
}

// podsHere returns those of the pods that are on this node; while that is unknown,
// all of them.
func (r *Reporter) podsHere(pods []string) []string {
	if here, known := r.cfg.Cluster.PodsHere(pods); known {
		return here
	}
	return pods
}

// Run sends what was noted until ctx ends. What waits then is lost; the next
// process reports it after its first check.
func (r *Reporter) Run(ctx context.Context) {
	recorder, shutdown := newRecorder(ctx, r.cfg.Client, r.cfg.Node, r.pace)
	defer shutdown()
	stop := context.AfterFunc(ctx, r.queue.ShutDown)
	defer stop()
	unanswered := 0 // in a row, of all volumes together
	for {
		key, ended := r.queue.Get()
		if ended {
			return
		}
		err := r.send(ctx, key, recorder)
		r.queue.Done(key)
		switch {
		case err == nil:
			r.queue.Forget(key)
			unanswered = 0
		case isOutage(err):
			unanswered++
			select {
			case <-ctx.Done():
			case <-time.After(retry.Outage.AfterWithJitter(unanswered)):
			}
			r.queue.Add(key)
		default:
			r.queue.AddRateLimited(key)
			unanswered = 0
		}
	}
}

// send brings the claim's annotation up to date and then records the messages of a
// volume, so that they wait for an API that is away: the recorder gives up after two
// minutes. An error has send called again.
func (r *Reporter) send(ctx context.Context, key volumeKey, recorder record.EventRecorder) error {
	var pods []string
	if !r.with(key, func(v *volume) { pods = v.latest.pods }) {
		return nil
	}
	subjects, known := r.cfg.Cluster.Subjects(ctx, key.driver, key.id, pods)
	if !known {
		klog.V(2).InfoS("No object to report on", "driver", line(key.driver), "volume_id", line(key.id))
		r.mu.Lock()
		defer r.mu.Unlock()
		r.volumes.Remove(key) // so that the next check reports it again
		return nil
	}
	err := r.annotate(ctx, key, subjects.Claim)
	if isOutage(err) || err != nil && r.queue.NumRequeues(key) < holdRetries {
		return err
	}
	var messages []message
	r.with(key, func(v *volume) {
		messages, v.messages = v.messages, nil
		r.pending -= len(messages)
	})
	for _, m := range messages {
		for i := range subjects.Pods[:min(len(subjects.Pods), maxEventPods)] {
			recorder.Event(&subjects.Pods[i], m.severity, m.reason, m.text)
		}
		if subjects.Claim != nil {
			recorder.Event(subjects.Claim, m.severity, m.reason, m.text)
		}
	}
	return err
}
