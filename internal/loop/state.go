package loop

import (
	"context"
	"slices"
	"time"

	"github.com/csi-addons/node-healer/pkg/healer"
)

// States returns what the loop knows; a nil one knows nothing. It waits for the goroutine
// of Run until ctx ends.
func (l *Loop) States(ctx context.Context) (s healer.LoopState) {
	if l == nil {
		return s
	}
	answer := make(chan healer.LoopState, 1)
	select {
	case l.asked <- answer:
		s = <-answer
	case <-l.ended:
	case <-ctx.Done():
	}
	action := l.cfg.Action()
	s.On, s.Action, s.Searched = action != Off, string(action), time.Unix(0, l.searched.Load())
	return s
}

// states is for the goroutine of Run.
func (l *Loop) states() healer.LoopState {
	all := healer.LoopState{Volumes: make([]healer.VolumeState, 0, len(l.known.all))}
	checked := l.discovered
	for _, v := range l.known.all {
		s := healer.VolumeState{Driver: v.key.driver, VolumeID: v.key.id, Checked: v.checked, Verdict: v.verdict, Health: v.health, Due: v.due, Error: v.failed, Failed: v.failedAt, Since: v.sick.since, Left: v.sick.left}
		if v.isSick() {
			s.Tries = v.tries
		}
		if v.unanswered(l.cfg.Interval, time.Now()) {
			s.Health = append(slices.Clone(s.Health), healer.HealthEntry{Status: healer.Unknown, Reason: healer.CheckUnanswered})
			if s.Verdict != healer.Abnormal {
				s.Verdict = ""
			}
		}
		checked = checked && (!s.Checked.IsZero() || len(s.Health) > 0)
		all.Volumes = append(all.Volumes, s)
	}
	l.checkedAll = l.checkedAll || checked
	all.CheckedAll = l.checkedAll
	return all
}

// unansweredAfter is after how many intervals without an answer the verdict of an earlier check is no
// longer told as if it still held.
const unansweredAfter = 3

func (v *volume) unanswered(interval time.Duration, now time.Time) bool {
	return now.Sub(later(v.checked, v.expected)) > unansweredAfter*interval
}

// record keeps what a check showed. A check without an answer, as while somebody else heals the volume,
// shows nothing new: a sick volume stays sick.
func (v *volume) record(r result, interval time.Duration, now time.Time) {
	switch kind := healer.KindOf(r.err); {
	case kind == healer.KindNotFound, kind == healer.KindBusy && !v.unanswered(interval, now):
	case r.err != nil:
		v.failed, v.failedAt, v.checkFailed = oneLine(r.err.Error()), now, !r.heals
	case r.heals:
		class, _ := r.report.Failure()
		v.failed, v.failedAt, v.checkFailed = oneLine(r.report.FailureText(class)), now, false
	case v.checkFailed, !r.report.After.Sick():
		v.failed = ""
	}
	if v.failed == "" {
		v.failedAt = time.Time{}
	}
	switch {
	case r.err == nil:
		v.checked, v.verdict, v.health = now, r.report.Verdict(), r.report.After.HealthEntries()
	case healer.KindOf(r.err) == healer.KindNotFound && !v.isSick():
		v.checked, v.verdict, v.health = now, "", nil
	}
}
