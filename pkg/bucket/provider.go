package bucket

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/csi-addons/node-healer/pkg/healer"
)

const (
	// askEvery is how often a bucket is asked while nothing of a volume is wrong and no caller
	// names it, askAgain otherwise.
	askEvery = time.Hour
	askAgain = 10 * time.Second
	// leastTime is how long a server has at least: a caller's time may be spent on other things.
	leastTime = time.Second
)

// Provider makes a provider for a driver of S3 volumes that builds the healer in (package
// nodehealer): of returns the bucket of a volume, and false for one that has none, or one that is
// not supported (docs/buckets.md), which would be a failure of the provider at each check. Nothing of
// it is asked of a request. Never build it into node-healer, which has no tenant's keys.
func Provider(of func(healer.Case) (Bucket, bool)) func(healer.Tools) healer.Provider {
	return func(healer.Tools) healer.Provider { return &provider{of: of, asked: map[Bucket]*memory{}} }
}

type provider struct {
	of func(healer.Case) (Bucket, bool)

	mu sync.Mutex
	// asked has what is asked once on a node, for however many volumes.
	asked map[Bucket]*memory
}

// memory is what was answered last.
type memory struct {
	// asking is closed when the question has ended that is under way; nil: none is.
	asking chan struct{}
	at     time.Time
	report Report
	// since is when the answer came first that has to be confirmed, suspected its reason.
	since     time.Time
	suspected healer.Reason
}

func (*provider) Name() string { return "bucket" }

func (*provider) Explain() (all []healer.Condition) {
	for _, r := range Rows() {
		if r.Condition.Reason != "" {
			all = append(all, conditionOf(r.Condition))
		}
	}
	return all
}

func (p *provider) Collect(ctx context.Context, c healer.Case) (healer.Evidence, error) {
	b, has := p.of(c)
	if !has {
		return nil, nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	m := p.memoryOf(b)
	for m.asking != nil && m.report.Verdict == "" { // there is no last answer to go by
		p.wait(ctx, m.asking)
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
	}
	if m.asking == nil && time.Since(m.at) >= m.holds(c.Volume.Named || wrong(c)) {
		began := time.Now()
		a, err := p.ask(ctx, m, b)
		if err == nil && (errors.Is(ctx.Err(), context.Canceled) || ctx.Err() != nil && time.Since(began) < leastTime) {
			err = ctx.Err() // who asked is stopping, or had no time, which says nothing of the server
		}
		if err != nil {
			return nil, err
		}
		m.learn(b, a)
	}
	if m.report.Verdict == NotJudged {
		return nil, errors.New(m.report.Message)
	}
	return m.report.Conditions, nil
}

// wait waits for who asks, with p unlocked.
func (p *provider) wait(ctx context.Context, asking chan struct{}) {
	p.mu.Unlock()
	defer p.mu.Lock()
	select {
	case <-asking:
	case <-ctx.Done():
	}
}

// ask asks, and others go by the last answer meanwhile. p is locked again also after a panic,
// which the engine survives.
func (p *provider) ask(ctx context.Context, m *memory, b Bucket) (answer, error) {
	m.asking = make(chan struct{})
	p.mu.Unlock()
	defer func() {
		p.mu.Lock()
		close(m.asking)
		m.asking = nil
	}()
	return ask(ctx, b)
}

// memoryOf returns what is known of an access. It drops those whose answer counts no longer: mostly
// their volumes are gone, or their keys were replaced.
func (p *provider) memoryOf(b Bucket) *memory {
	key := b
	key.Expires = time.Time{} // equal times may differ as values
	if p.asked[key] == nil {
		maps.DeleteFunc(p.asked, func(_ Bucket, m *memory) bool { return m.asking == nil && time.Since(m.at) > askEvery })
		p.asked[key] = &memory{}
	}
	return p.asked[key]
}

// wrong reports whether the volume's daemon returned an errno, or could not look a name up.
func wrong(c healer.Case) bool {
	for _, sb := range c.Superblocks {
		if sb.Answer.Errno != 0 || sb.Answer.TimedOut || c.LookupFailed(sb.Lookup) {
			return true
		}
	}
	return false
}

// holds returns for how long the last answer counts: not for long where a caller names the
// volume, as a daemon may know by heart what is in a bucket that is gone (rclone, for minutes).
func (m *memory) holds(doubtful bool) time.Duration {
	if doubtful || m.report.Verdict != Healthy {
		return askAgain
	}
	return askEvery
}

// learn takes an answer, and returns for how long it is not certain. One that has to be confirmed
// is a condition from the first time on, and no loss of data before the second, with which a
// provider does not wait. Whatever else is answered in between, the next one is the first again.
func (m *memory) learn(b Bucket, a answer) (again time.Duration) {
	row, known := b.rowOf(a)
	if row.Condition.Reason != m.suspected {
		m.since, m.suspected = a.Time, row.Condition.Reason
	}
	m.at, m.report = a.Time, diagnose(b, a, row.Condition, known)
	if again = row.Confirm - a.Time.Sub(m.since); again > 0 {
		first := &m.report.Conditions[0]
		first.Status = healer.Inaccessible
		first.Message += fmt.Sprintf("; not certain before it is answered again %s later", row.Confirm)
	}
	return again
}

func (p *provider) Examine(c healer.Case) (healer.Finding, error) {
	found, asked := c.Evidence[p.Name()].([]Condition)
	f := healer.Finding{Mine: asked}
	at, staged := c.Staged()
	if !staged && len(c.MountPoints) > 0 {
		at = c.MountPoints[0]
	}
	for _, condition := range found {
		one := conditionOf(condition)
		one.MountPoint, one.Superblock = at.Path, at.Dev()
		f.Conditions = append(f.Conditions, one)
	}
	return f, nil
}

// conditionOf says also whether staging the volume anew would help.
func conditionOf(c Condition) healer.Condition {
	advice := c.Advice
	if slices.Contains([]healer.Reason{CredentialsRefused, CredentialsExpired}, c.Reason) {
		advice += "; a volume that is staged anew with them works again"
	}
	return healer.Condition{Status: c.Status, Reason: c.Reason, Message: c.Message, Advice: advice}
}
