package kube

import (
	"context"
	"errors"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/csi-addons/node-healer/pkg/healer"
)

// maxVolumes is how many volumes the reporter remembers. More than a node has:
// what is forgotten is said once more.
const maxVolumes = 2048

// Subjects are the objects that a volume is reported on.
type Subjects struct {
	// Claim is nil when the volume has none, as one that a pod spells out.
	Claim *corev1.ObjectReference
	// Pods are those on this node that use the volume.
	Pods []corev1.ObjectReference
}

// ReporterConfig is what a Reporter needs to know.
type ReporterConfig struct {
	// Node is this node's name.
	Node string
	// NodeUID is false as long as the API has not said it.
	NodeUID func() (types.UID, bool)
	// Here gives those of some pods that are on this node, from memory. It is false
	// when nobody knows yet.
	Here func(podUIDs []string) ([]string, bool)
	// Find gives what to report on. It is false when the volume is not known (yet):
	// it is asked again at the next check.
	Find func(ctx context.Context, driver, volumeID string, podUIDs []string) (Subjects, bool)
}

// Reporter tells the users of a volume what the healer tells its callers:
// events when something changes, and the claim's health. Make it with
// NewReporter.
type Reporter struct {
	here   func(podUIDs []string) ([]string, bool)
	events *events
	health *volumeHealth

	mu      sync.Mutex
	volumes map[volumeKey]*standing
}

// volumeKey names a volume: two drivers may share a handle.
type volumeKey struct{ driver, id string }

// NewReporter checks cfg; nothing is sent before Run.
func NewReporter(c *Client, cfg ReporterConfig) (*Reporter, error) {
	if cfg.Node == "" || cfg.NodeUID == nil || cfg.Here == nil || cfg.Find == nil {
		return nil, errors.New("kube: reports need the node's name and UID, and a way to find the objects to report on")
	}
	r := &Reporter{here: cfg.Here, volumes: map[volumeKey]*standing{}}
	r.events = newEvents(c, cfg, r.forget)
	r.health = newVolumeHealth(c, cfg)
	return r, nil
}

// Run sends what is noted until ctx ends. What waits then is lost; the next
// process says it after its first check.
func (r *Reporter) Run(ctx context.Context) {
	var both sync.WaitGroup
	both.Go(func() { r.events.run(ctx) })
	both.Go(func() { r.health.run(ctx) })
	both.Wait()
}

// Note takes what a caller was told of a volume, and what puts that into words.
// It neither waits nor asks anybody, and keeps nothing of the report.
func (r *Reporter) Note(report healer.Report, words func(healer.Report) string) {
	key := volumeKey{driver: report.Driver, id: report.Volume.ID}
	r.mu.Lock()
	defer r.mu.Unlock()
	told := r.volumes[key]
	if told == nil {
		makeRoom(r.volumes, maxVolumes, func(v *standing) time.Time { return v.noted })
		told = &standing{}
		r.volumes[key] = told
	}
	ill := told.ill.after(report, r.stillHere)
	s := see(report, ill)
	told.noted = s.at
	next, all := told.turn(report, ill, words)
	for _, n := range all {
		if !r.events.offer(event{volume: s.key, pods: s.pods, at: s.at, news: n}) {
			next = *told // to be said at the next check
			break
		}
	}
	*told = next
	r.health.offer(s)
}

// stillHere gives those of the pods that are on this node. While that is not known,
// nobody can say of one that it is not.
func (r *Reporter) stillHere(pods []string) []string {
	if here, known := r.here(pods); known {
		return here
	}
	return pods
}

// forget has the next check say again how the volume is.
func (r *Reporter) forget(k volumeKey) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.volumes, k)
}
