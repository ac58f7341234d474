package watch

import (
	"context"
	"slices"
	"time"

	"github.com/csi-addons/node-healer/pkg/healer"
)

// State is one volume as the loop last saw it.
type State struct {
	Driver, VolumeID string
	// Paths are kubelet's paths of it.
	Paths []string
	// Checked is when a check last had an answer; zero before the first.
	Checked time.Time
	// Verdict and Health are what that answer showed. Verdict is empty before the first,
	// after one that the volume is not there, and where the volume was healthy long ago;
	// then CheckUnanswered is in Health.
	Verdict healer.Verdict
	Health  []healer.HealthEntry
	// Since is when it was first found abnormal; zero while it is not.
	Since time.Time
	// Due is when it is checked next, Tries how many heals of the loop did not help.
	Due   time.Time
	Tries int
	// Left says why the loop tries no more; zero while it does, or nothing is wrong.
	Left healer.LeftAlone
}

// States are all volumes at one time.
type States struct {
	// Action is what the loop may do now. Searched is when a search last showed which
	// volumes there are, before the first when the loop was made. Both are known even
	// if the goroutine of Run hangs.
	Action   Action
	Searched time.Time
	// Volumes has none once the loop has ended, and if it does not answer.
	Volumes []State
	// OpenBreakers counts the backends whose heals are held back.
	OpenBreakers int
}

// States returns what the loop knows. It waits for the goroutine of Run until ctx ends.
func (l *Loop) States(ctx context.Context) (s States) {
	answer := make(chan States, 1)
	select {
	case l.asked <- answer:
		s = <-answer
	case <-l.ended:
	case <-ctx.Done():
	}
	s.Action, s.Searched = l.cfg.Action(), time.Unix(0, l.searched.Load())
	return s
}

// states is for the goroutine of Run.
func (l *Loop) states() States {
	all := States{Volumes: make([]State, 0, len(l.known.all))}
	for _, v := range l.known.all {
		s := State{Driver: v.key.driver, VolumeID: v.key.id, Checked: v.checked, Verdict: v.verdict, Health: v.health, Due: v.due}
		for _, p := range v.paths {
			s.Paths = append(s.Paths, p.Path)
		}
		if v.sick != nil {
			s.Since, s.Tries, s.Left = v.sick.since, v.sick.tries, v.sick.leftAlone()
		}
		if time.Since(later(v.checked, v.expected)) > unansweredAfter*l.cfg.Interval {
			s.Health = append(slices.Clone(s.Health), healer.HealthEntry{Status: healer.Unknown, Reason: healer.CheckUnanswered})
			if s.Verdict != healer.Abnormal {
				s.Verdict = ""
			}
		}
		all.Volumes = append(all.Volumes, s)
	}
	for name, b := range l.heals.breakers {
		if l.heals.action == Heal && b.open(l.heals.sick[name]) {
			all.OpenBreakers++
		}
	}
	return all
}

// unansweredAfter is after how many intervals without an answer what an earlier one showed
// is no longer told as if it were so.
const unansweredAfter = 3

// saw keeps what a check showed. One without an answer, as while the volume is healed,
// shows nothing new: a sick volume stays sick.
func (v *volume) saw(r result, now time.Time) {
	switch {
	case r.err == nil:
		v.checked, v.verdict, v.health = now, r.report.Verdict(), r.report.After.HealthEntries()
	case healer.KindOf(r.err) == healer.KindNotFound && v.sick == nil:
		v.checked, v.verdict, v.health = now, "", nil
	}
}
