package driver

import (
	"fmt"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"

	"github.com/csi-addons/node-healer/pkg/api/healerpb"
	"github.com/csi-addons/node-healer/pkg/healer"
)

const (
	// maxVolumes is many times the volumes of a node.
	maxVolumes = 1024
	// pendingFor is how long answers count as those of one row.
	pendingFor = time.Hour
	// stepsAtWork is for how many step timeouts a driver counts as at work that did not
	// answer in one.
	stepsAtWork = 3
	// abortedFor is how long a driver counts as at work that says so, from the first
	// time.
	abortedFor = 10 * time.Minute
	// maxPending is after how many pending answers in a row the driver no longer counts
	// as at work.
	maxPending = 3
)

// pending is a row of answers to one method (NodeHealer, NodeStageVolume) of one volume, each
// of which left open whether the driver is still at work. Any other answer ends the row.
type pending struct {
	// since is when the first answer came, last when the last one did.
	since, last time.Time
	// left is when a call last ended before the driver answered.
	left time.Time
	// aborted is when the driver first said that it was at work, after left.
	aborted time.Time
	// answers is how many came in time, after left.
	answers int
}

// add returns the row with one more answer.
func (u pending) add(code codes.Code, now time.Time) pending {
	if u.since.IsZero() {
		u.since = now
	}
	u.last = now
	if code == codes.DeadlineExceeded || code == codes.Canceled {
		u.left, u.aborted, u.answers = now, time.Time{}, 0
		return u
	}
	u.answers++
	if code == codes.Aborted && u.aborted.IsZero() {
		u.aborted = now
	}
	return u
}

// atWork reports whether the driver may still be at work. It does not count as such for
// ever: a driver that stays at work would keep everything else from healing the volume.
func (u pending) atWork(now time.Time, stepTimeout time.Duration) bool {
	switch {
	case now.Before(u.left.Add(stepsAtWork * stepTimeout)), now.Before(u.aborted.Add(abortedFor)):
		return true
	default:
		return u.answers > 0 && u.answers < maxPending && now.Before(u.last.Add(abortedFor))
	}
}

type volumeOf struct{ driver, id string }

func keyOf(c healer.Case) volumeOf { return volumeOf{c.Driver, c.Volume.ID} }

// methodAt is a method that changes one volume.
type methodAt struct {
	volumeOf
	method string
}

// The methods that change a volume.
var (
	methodHeal  = shortName(healerpb.HealerNode_NodeHealer_FullMethodName)
	methodStage = shortName(csi.Node_NodeStageVolume_FullMethodName)
)

func (m memory) pendingOf(c healer.Case, method string) pending {
	known, _ := m.pending.Get(methodAt{keyOf(c), method})
	u, _ := known.(pending)
	return u
}

// atWorkSince returns since when the driver may have been at work on the volume; false: it
// is not. What answers at the staging path shows that it has staged the volume.
func (p *Provider) atWorkSince(c healer.Case) (since time.Time, is bool) {
	for _, method := range []string{methodHeal, methodStage} {
		if method == methodStage && stagedAnswers(c) {
			continue
		}
		if u := p.memory.pendingOf(c, method); u.atWork(p.memory.clock.Now(), p.cfg.StepTimeout) {
			return u.since, true
		}
	}
	return since, false
}

// atWork reports whether the driver may still be at work on the volume.
func (p *Provider) atWork(c healer.Case) bool {
	_, is := p.atWorkSince(c)
	return is
}

// noteAnswer remembers what the driver answered to a method; nil is an answer without an
// error.
func (p *Provider) noteAnswer(c healer.Case, method string, e *callError) {
	key := methodAt{keyOf(c), method}
	if e == nil || !e.row.Pending() {
		p.memory.pending.Remove(key)
		return
	}
	u := p.memory.pendingOf(c, method).add(e.row.Code, p.memory.clock.Now())
	p.memory.pending.Add(key, u, pendingFor)
}

// Excludes implements healer.Excluder: a driver that did not say how it ended may still
// change what a step of another provider would change, too.
func (p *Provider) Excludes(c healer.Case) string {
	since, is := p.atWorkSince(c)
	if !is {
		return ""
	}
	return fmt.Sprintf("driver %s may still be at work since %s", healer.QuoteName(c.Driver), since.UTC().Format(time.RFC3339))
}
