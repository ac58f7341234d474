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
		s := healer.VolumeState{Driver: v.key.driver, VolumeID: v.key.id, Checked: v.checked, Verdict: v.verdict, Health: v.health, Due: v.due, Since: v.sick.since, Left: v.sick.left}
		if v.isSick() {
			s.Tries = v.tries
		}
		for _, f := range []failure{v.healFailed, v.checkFailed} {
			if f.at.After(s.Failed) {
				s.Error, s.Failed = f.text, f.at
			}
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
	case r.err != nil && !r.heals:
		v.checkFailed = failure{oneLine(r.err.Error()), now}
	case r.err != nil:
		v.healFailed = failure{oneLine(r.err.Error()), now}
	default:
		v.checkFailed = failure{}
		if class, _ := r.report.Failure(); r.heals {
			v.healFailed = failure{oneLine(r.report.FailureText(class)), now}
		}
		if v.healFailed.text == "" || !r.heals && !r.report.After.Sick() {
			v.healFailed = failure{}
		}
	}
	switch {
	case r.err == nil:
		v.checked, v.verdict, v.health = now, r.report.Verdict(), r.report.After.HealthEntries()
	case healer.KindOf(r.err) == healer.KindNotFound && !v.isSick():
		v.checked, v.verdict, v.health = now, "", nil
	}
}
