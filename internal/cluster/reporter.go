package cluster

import (
	"cmp"
	"context"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/record"
	"k8s.io/client-go/util/flowcontrol"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/klog/v2"
	"k8s.io/utils/lru"

	"github.com/csi-addons/node-healer/internal/retry"
	"github.com/csi-addons/node-healer/pkg/api/volumehealth"
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
	// sinceGap is how long a volume may go without a check and still count as sick all the time.
	// A driver may have repaired it in a longer one, and has its time again for what is found then.
	// The loop tries a sick volume more often.
	sinceGap = time.Hour
)

// reporter reports volumes to their users in the cluster: what callers of the server were
// told, and nothing else.
type reporter struct {
	client *client
	// node is this node's name.
	node    string
	cluster objects
	pace    flowcontrol.RateLimiter
	// silent has notes kept for foundSince alone.
	silent bool
	// queue has the volumes that may have something to send.
	queue workqueue.TypedRateLimitingInterface[volumeKey]

	mu sync.Mutex
	// volumes has a *volume by volumeKey, pending counts their messages.
	volumes *lru.Cache
	pending int
}

// objects knows what to report on; *Cluster is the real one.
type objects interface {
	nodeUID() types.UID
	podHere(uid string) bool
	subjects(ctx context.Context, driver, volumeID string, podUIDs []string) (subjects, bool)
}

// volumeKey names a volume: two drivers may use the same id.
type volumeKey struct{ driver, id string }

type volume struct {
	reported reported
	// checked is when the last check found state, of the whole volume and not only of the
	// checked mount points. state is empty while no check could judge all of it.
	checked time.Time
	state   string
	// evictable are its reasons that only new pods end, if these end all that is wrong.
	evictable []string
	// pods are those whose mount points the last check saw.
	pods []string
	// since has, by reason, since when the volume's checks have found it.
	since map[string]time.Time
	// messages wait to be recorded.
	messages   []message
	annotation annotation
}

// newReporter returns a reporter that sends nothing before run.
func newReporter(client *client, node string, cluster objects) *reporter {
	r := &reporter{
		client: client, node: node, cluster: cluster,
		pace:  flowcontrol.NewTokenBucketRateLimiter(requestQPS, requestBurst),
		queue: workqueue.NewTypedRateLimitingQueue(workqueue.NewTypedItemExponentialFailureRateLimiter[volumeKey](retry.Transient.First, retry.Transient.Max)),
	}
	r.volumes = lru.NewWithEvictionFunc(maxVolumes, func(_ lru.Key, v any) { r.pending -= len(v.(*volume).messages) })
	return r
}

// Note takes what a caller was told of a volume, and how to put that into words. It
// does not block and does not keep the report.
func (c *Cluster) Note(report healer.Report, words func(healer.Report) string) {
	c.reporter.note(report, words)
}

func (r *reporter) note(report healer.Report, words func(healer.Report) string) {
	key := volumeKey{driver: report.Driver, id: report.Volume.ID}
	r.mu.Lock()
	defer r.mu.Unlock()
	kept, known := r.volumes.Get(key)
	notJudged := report.Verdict() == healer.NotJudged
	if notJudged && !report.Helped() {
		if known { // the check found none of the reasons: the driver has its time again for the next one
			kept.(*volume).since = nil
		}
		return // neither healthy nor not: what was said last stands, with its time
	}
	if !known {
		kept = &volume{}
		r.volumes.Add(key, kept)
	}
	v := kept.(*volume)
	conditions := v.reported.conditions.after(report, r.cluster.podHere)
	since, now := map[string]time.Time{}, time.Now()
	for _, m := range conditions {
		for _, reason := range m.reasons {
			if since[reason] = now; now.Sub(v.checked) < sinceGap {
				since[reason] = cmp.Or(v.since[reason], now)
			}
		}
	}
	v.since, v.pods, v.evictable = since, podsOf(report), evictable(conditions, report.After)
	if !notJudged { // else the claim stays as healthy as it was: a healed mount point says nothing of the others
		v.checked, v.state = now, volumehealth.Healthy
		if len(conditions) > 0 {
			v.state = volumehealth.Unhealthy
		}
	}
	next, messages := v.reported.after(report, conditions, words)
	if r.silent {
		v.reported = next
		return
	}
	if r.pending+len(messages) > maxPending {
		messages = nil // reported stays as it was, so that the next check says it
	} else {
		v.reported, v.messages, r.pending = next, append(v.messages, messages...), r.pending+len(messages)
	}
	// A volume that failed is queued already, and waits for its next try.
	isDue := r.queue.NumRequeues(key) == 0 && (len(v.messages) > 0 || !v.annotation.covers(*v))
	if (isDue || len(messages) > 0) && r.queue.Len() < maxVolumes {
		r.queue.Add(key)
	}
}

// foundSince returns since when a volume's checks have found a reason; zero: they have not.
func (r *reporter) foundSince(key volumeKey, reason healer.Reason) time.Time {
	r.mu.Lock()
	defer r.mu.Unlock()
	if v, known := r.volumes.Get(key); known {
		return v.(*volume).since[string(reason)]
	}
	return time.Time{}
}

// run sends what was noted until ctx ends. What waits then is lost; the next
// process reports it after its first check.
func (r *reporter) run(ctx context.Context) {
	recorder, shutdown := r.newRecorder(ctx)
	defer shutdown()
	stop := context.AfterFunc(ctx, r.queue.ShutDown)
	defer stop()
	unanswered := 0 // in a row, of all volumes together
	logged := ""    // the last error
	for {
		key, ended := r.queue.Get()
		if ended {
			return
		}
		err := r.send(ctx, key, recorder)
		r.queue.Done(key)
		if err != nil && err.Error() != logged && unanswered == 0 && r.queue.NumRequeues(key) == 0 && ctx.Err() == nil {
			klog.ErrorS(err, "Cannot write the health of a volume to its claim")
			logged = err.Error()
		}
		switch {
		case err == nil:
			r.queue.Forget(key)
			unanswered, logged = 0, ""
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
func (r *reporter) send(ctx context.Context, key volumeKey, recorder record.EventRecorder) error {
	r.mu.Lock()
	kept, known := r.volumes.Get(key)
	if !known {
		r.mu.Unlock()
		return nil
	}
	v := *kept.(*volume)
	r.mu.Unlock()
	on, known := r.cluster.subjects(ctx, key.driver, key.id, v.pods)
	if !known {
		klog.V(2).InfoS("No object to report on", "driver", line(key.driver), "volume_id", line(key.id))
		r.mu.Lock()
		defer r.mu.Unlock()
		r.volumes.Remove(key) // so that the next check reports it again
		return nil
	}
	annotation, err := r.annotate(ctx, v, on.claim)
	for _, m := range r.written(key, annotation, err) {
		for i := range on.pods[:min(len(on.pods), maxEventPods)] {
			recorder.Event(&on.pods[i], m.severity, m.reason, m.linked())
		}
		if on.claim != nil {
			recorder.Event(on.claim, m.severity, m.reason, m.linked())
		}
	}
	return err
}

// do sends a request when its turn has come.
func (r *reporter) do(ctx context.Context, what request, verb *rest.Request, into runtime.Object) error {
	if err := r.pace.Wait(ctx); err != nil {
		return err
	}
	return r.client.do(ctx, what, verb, into)
}

// written keeps what a volume's claim has, and returns the messages that are to be recorded
// now: they wait while err says that the API is away, or that it may have just started. A
// check that came meanwhile and differs is written, too.
func (r *reporter) written(key volumeKey, a annotation, err error) (messages []message) {
	r.mu.Lock()
	defer r.mu.Unlock()
	kept, known := r.volumes.Get(key)
	if !known {
		return nil
	}
	v := kept.(*volume)
	v.annotation = a
	switch {
	case err == nil && a.claim != "" && !a.covers(*v):
		r.queue.Add(key)
	case isOutage(err), err != nil && r.queue.NumRequeues(key) < holdRetries:
		return nil
	}
	messages, v.messages = v.messages, nil
	r.pending -= len(messages)
	return messages
}
