package loop

import (
	"context"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"k8s.io/klog/v2"

	"github.com/csi-addons/node-healer/internal/printable"
	"github.com/csi-addons/node-healer/pkg/healer"
)

// The keys of this package's log lines. They are part of the interface.
const (
	keyVolumeID = "volume_id"
	keyDriver   = "driver"
	keyVerdict  = "verdict"
	keyFound    = "found"
	keyError    = "error"
)

// logTextBytes bounds one text in a log line.
const logTextBytes = 512

// result is what a check or a heal of a volume showed.
type result struct {
	volume *volume
	report healer.Report
	err    error
	took   time.Duration
	// heals is whether it was a heal, backend the name of the backend at which it ran, and found
	// sickness.found before it.
	heals          bool
	backend, found string
	// wasSlow is whether it counts in Loop.slow.
	wasSlow bool
}

// start checks or heals a volume at the best of its paths. A check or heal that was begun goes on when
// ctx ends.
func (l *Loop) start(ctx context.Context, v *volume, heals bool, now time.Time) {
	routine := !v.urgent && !heals && !v.isSick()
	if v.urgent || heals {
		v.hurried = now
	}
	v.running, v.again, v.urgent = true, false, false
	l.running++
	l.of[v.key.driver]++
	if v.slow {
		l.slow[v.key.driver]++
	}
	logger := klog.FromContext(ctx).WithValues(keyVolumeID, oneLine(v.key.id), keyDriver, oneLine(v.key.driver))
	ctx = klog.NewContext(healer.WithCaller(context.WithoutCancel(ctx), healer.CallerLoop), logger)
	r := result{volume: v, wasSlow: v.slow, heals: heals}
	do := l.cfg.Engine.Check
	if heals {
		do, r.backend, r.found = l.cfg.Engine.Heal, v.sick.backend, v.sick.found
		l.heals.running++
		l.heals.budget.AllowN(now, 1)
		l.heals.backend(r.backend).running++
	}
	paths, published := l.known.toCheck(v)
	named := healer.Volume{ID: v.key.id, Unasked: true, Routine: routine, Published: published}
	go func() {
		r.err = healer.NotFound("nothing of the volume is mounted")
		for _, named.Path = range paths {
			r.report, r.err = do(ctx, named)
			r.report.Volume = named
			if healer.KindOf(r.err) != healer.KindNotFound {
				break
			}
		}
		r.took = time.Since(now)
		l.checked <- r
	}()
}

// finish publishes what a check showed, and says when the volume is checked next.
func (l *Loop) finish(r result) {
	now, v := time.Now(), r.volume
	v.running = false
	if !r.heals || r.err == nil && !r.report.After.Sick() { // how long steps take says nothing of the next check
		v.slow = !r.heals && r.took > slowCheck
	}
	l.running--
	drop(l.of, v.key.driver)
	if r.wasSlow {
		drop(l.slow, v.key.driver)
	}
	v.due = l.nextTurn(v, now)
	l.diagnosed(r, now)
	v.record(r, l.cfg.Interval, now)
	if v.again {
		v.changed(now, now, l.cfg.Interval)
	}
	if v.driverBack {
		l.cameBack(v, now)
	}
	if r.err == nil {
		r.report.Left = v.sick.left
		r.report.HealFollows = !r.heals && l.heals.action == Heal && !l.cfg.DryRun && v.sick.healable()
		l.cfg.Publish(r.report)
	}
	l.log(r)
}

func drop(count map[string]int, of string) {
	if count[of]--; count[of] == 0 {
		delete(count, of)
	}
}

// mayCheck reports whether the limits allow another check of a volume's driver.
func (l *Loop) mayCheck(v *volume) bool {
	all := 0
	for _, running := range l.slow {
		all += running
	}
	return l.of[v.key.driver] < maxOfOne && (!v.slow || all < maxSlow && l.slow[v.key.driver] < maxSlowOfOne)
}

// nextTurn returns when a volume that was just checked is checked next: an interval later, give or take a
// turn, so that volumes that were once checked together do not stay together. After the first check of a
// volume that was due at once it is any turn within the interval: volumes that came together are spread.
// Checks begin in turns: several at once cost half of what each costs alone, as processes are awake and
// caches warm.
func (l *Loop) nextTurn(v *volume, now time.Time) time.Time {
	wait := turns - 1 + rand.N(3) //nolint:gosec // a schedule is no secret
	if v.checked.IsZero() && !v.due.After(v.expected) {
		wait = 1 + rand.N(turns) //nolint:gosec // as above
	}
	turn := l.cfg.Interval / turns
	return now.Add(time.Duration(wait)*turn - now.Sub(l.firstTurn)%turn)
}

// log writes a line when the outcome is another one than that of the last check. A
// volume that is healthy when it is first seen, or that is just not there, has none.
func (l *Loop) log(r result) {
	said := "" // there is nothing to check
	switch {
	case r.err == nil:
		said = string(r.report.Verdict()) + " " + reasons(r.report)
	case healer.KindOf(r.err) == healer.KindBusy:
		return // the heal reports it
	case healer.KindOf(r.err) != healer.KindNotFound:
		said = "error"
	}
	before := r.volume.said
	if r.volume.said = said; said == before {
		return
	}
	fields := []any{keyVolumeID, oneLine(r.volume.key.id), keyDriver, oneLine(r.volume.key.driver)}
	switch {
	case said == "":
		klog.V(2).InfoS("A watched volume is no longer mounted", fields...)
	case r.err != nil:
		klog.InfoS("A watched volume could not be checked", append(fields, keyError, oneLine(r.err.Error()))...)
	case before != "" || r.report.Verdict() != healer.Healthy:
		klog.InfoS("A watched volume changed", append(fields, keyVerdict, string(r.report.Verdict()), keyFound, reasons(r.report))...)
	}
}

// reasons lists what was found, each once, and the providers that failed.
func reasons(r healer.Report) string {
	var all []string
	for _, c := range r.After.Conditions {
		all = append(all, string(c.Reason))
	}
	for _, f := range r.After.Failures {
		all = append(all, "failed:"+f.Provider)
	}
	slices.Sort(all)
	return oneLine(strings.Join(slices.Compact(all), ","))
}

func oneLine(text string) string { return printable.Line(text, logTextBytes) }

// logOnce writes a line when what went wrong is another error than the last time.
func (l *Loop) logOnce(what string, err error) {
	text := ""
	if err != nil {
		text = oneLine(err.Error())
	}
	before := l.logged[what]
	if l.logged[what] = text; text != "" && text != before {
		klog.InfoS(what, keyError, text)
	}
}
