package loop

import (
	"context"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"
	"k8s.io/klog/v2"

	"github.com/csi-addons/node-healer/internal/node"
	"github.com/csi-addons/node-healer/pkg/facts"
	"github.com/csi-addons/node-healer/pkg/healer"
)

const (
	// changeDelay is how long after a change of its mounts a volume is checked: most changes
	// are several, as when a driver binds and then remounts.
	changeDelay = 20 * time.Millisecond
	// changeGap is the time between two checks of a volume whose mounts keep changing.
	changeGap = time.Second
	// listenGap is the time between two looks at the mount table, discoverGap that
	// between two searches for volumes. Both are longer where they take long: no more
	// than one part in maxShare of the time goes into either.
	listenGap   = 50 * time.Millisecond
	discoverGap = time.Second
	maxShare    = 20
	// retryDiscovery is when a search that failed is made again.
	retryDiscovery = 10 * time.Second
	// checksPerSecond bounds what a storm of changes costs; as many may begin at once, which
	// are those of a turn on a node with 1,000 volumes. The volume that is due first is
	// checked first, so that a storm delays every check alike.
	checksPerSecond = 100
	// maxChecks bounds the checks and heals at once, maxSlow the checks of volumes whose last check was
	// slow, and maxOfOne and maxSlowOfOne those of one driver: many that hang keep no other from its
	// turn, nor those of another driver, which may answer late, when they begin to hang.
	maxChecks    = 20
	maxOfOne     = 16
	maxSlow      = 12
	maxSlowOfOne = 4
	slowCheck    = time.Second
	// turns is how often in an interval routine checks begin.
	turns = 12
)

// Node finds the volumes; *node.Node is one, and says what each call does.
type Node interface {
	Volumes(ctx context.Context) ([]facts.VolumePath, error)
	VolumeMounts() ([]facts.Mount, error)
	Changes(ctx context.Context) (<-chan struct{}, error)
}

// Events tells of superblocks to which something happened; *node.SuperblockEvents is one, and says how.
type Events interface {
	Follow(ctx context.Context, mounts []facts.Mount, drivers []string) error
	Events() <-chan node.SuperblockEvent
}

// Config is what a Loop is made of.
type Config struct {
	Node   Node
	Engine healer.Engine
	// Events begins to tell what no mount table shows.
	Events func(ctx context.Context) Events
	// Publish gets each report, and must return at once.
	Publish func(healer.Report)
	// Drivers are those whose volumes are checked; empty: all.
	Drivers []string
	// Interval is the time between two checks of a volume, a second at least.
	Interval time.Duration
	// Action returns what the loop may do now. It is asked often.
	Action func() Action
	// Recovered gets how long a volume was abnormal that is healthy again, and whether a
	// heal of the loop's did that; nil: not needed.
	Recovered func(after time.Duration, healed bool)
	// DryRun: the engine changes nothing, so no report says that a heal follows.
	DryRun bool
}

// Loop checks the volumes of a node. Its fields belong to the goroutine of Run.
type Loop struct {
	cfg   Config
	known volumes
	// firstTurn is up to a turn before Run began: servers that start together have other turns.
	firstTurn time.Time
	running   int
	// of counts the running checks and heals by driver.
	of map[string]int
	// slow counts, by driver, the running checks of volumes whose last check was slow, also of volumes that are gone.
	slow    map[string]int
	checked chan result
	// budget bounds the checks that begin in a second.
	budget *rate.Limiter

	found chan discovery
	// discovering is true while volumes are searched for, discovered once they were found.
	discovering, discovered bool
	// checkedAll is healer.LoopState.CheckedAll.
	checkedAll              bool
	discoverAt, mayDiscover time.Time
	// searched is healer.LoopState.Searched in nanoseconds. It is read from any goroutine.
	searched atomic.Int64
	events   Events
	// readAt is when the last reading of the mount table began.
	readAt time.Time
	// listenAt is when the mount table may be read again.
	listenAt time.Time
	// logged has the last logged error of each kind of work; empty where it succeeded since.
	logged map[string]string
	heals  healing
	// asked has the channels of those who wait for the states; ended is closed when Run returns.
	asked chan chan<- healer.LoopState
	ended chan struct{}
}

// New returns a Loop that has not begun.
func New(cfg Config) *Loop {
	l := &Loop{
		cfg:     cfg,
		known:   newVolumes(),
		of:      map[string]int{},
		slow:    map[string]int{},
		checked: make(chan result, maxChecks),
		budget:  rate.NewLimiter(checksPerSecond, checksPerSecond),
		found:   make(chan discovery, 1),
		heals: healing{
			action: Off, budget: rate.NewLimiter(rate.Every(time.Minute/healsPerMinute), healsBurst), backends: map[string]*backend{},
		},
		asked:  make(chan chan<- healer.LoopState),
		ended:  make(chan struct{}),
		logged: map[string]string{},
	}
	l.searched.Store(time.Now().UnixNano())
	return l
}

// Run checks until ctx ends, and returns when the running checks have ended. It may be
// called once.
func (l *Loop) Run(ctx context.Context) {
	defer close(l.ended)
	changes, err := l.cfg.Node.Changes(ctx)
	if err != nil {
		klog.ErrorS(err, "Changes of mounts are not noticed before the next turn")
	}
	l.events = l.cfg.Events(ctx)
	happened := l.events.Events()
	now := time.Now()
	l.firstTurn = now.Add(-rand.N(l.cfg.Interval / turns)) //nolint:gosec // a schedule is no secret
	l.readMounts(now)
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		timer.Reset(time.Until(l.advance(ctx)))
		listened := changes
		if time.Now().Before(l.listenAt) { // all that changes until then is one change
			listened = nil
		}
		select {
		case <-ctx.Done():
			l.drain(changes, happened)
			return
		case _, open := <-listened:
			if !open { // or ctx has ended
				changes = nil
			}
			l.readMounts(time.Now())
		case e, open := <-happened:
			if !open {
				happened = nil
			}
			l.happenedTo(e)
		case r := <-l.checked:
			l.finish(r)
			for len(l.checked) > 0 { // each look at all volumes costs as much as several of these
				l.finish(<-l.checked)
			}
		case d := <-l.found:
			l.apply(d)
		case answer := <-l.asked:
			answer <- l.states()
		case <-timer.C:
		}
	}
}

// advance starts the checks and heals that are due, and returns when to call it next.
func (l *Loop) advance(ctx context.Context) time.Time {
	now := time.Now()
	if l.decide(); l.heals.action == Off {
		return now.Add(actionGap)
	}
	if !l.discovering && !now.Before(l.discoverAt) {
		l.discover(ctx)
	}
	next := now.Add(min(l.cfg.Interval, actionGap))
	for _, at := range []time.Time{l.listenAt, l.discoverAt} {
		if at.After(now) && at.Before(next) {
			next = at
		}
	}
	sick, due, next := l.known.look(now, next)
	l.heals.count(sick)
	for l.running < maxChecks {
		heal, ask := l.nextHeal(sick, now)
		if heal == nil {
			next = earlier(next, ask)
			break
		}
		if !l.budget.AllowN(now, 1) {
			return earlier(next, now.Add(time.Second/checksPerSecond))
		}
		l.start(ctx, heal, true, now)
	}
	for _, v := range due {
		switch {
		case l.running >= maxChecks:
			return next // a check that ends wakes the loop
		case v.running || !l.mayCheck(v):
			continue
		case !l.budget.AllowN(now, 1):
			return earlier(next, now.Add(time.Second/checksPerSecond))
		}
		l.start(ctx, v, false, now)
	}
	return next
}

// drain waits for the checks, heals and the search that were started: each has a deadline of its
// own.
func (l *Loop) drain(changes <-chan struct{}, happened <-chan node.SuperblockEvent) {
	for l.running > 0 {
		l.finish(<-l.checked)
	}
	if l.discovering {
		<-l.found
	}
	if changes != nil {
		for range changes { //nolint:revive // until it closes
		}
	}
	if happened != nil {
		for range happened { //nolint:revive // until it closes
		}
	}
}

func earlier(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}

func later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}
