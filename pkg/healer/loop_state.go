package healer

import "time"

// VolumeState is one volume as the loop last saw it.
type VolumeState struct {
	Driver, VolumeID string
	// Checked is when a check last had an answer; zero before the first.
	Checked time.Time
	// Verdict and Health are what that answer showed. Verdict is empty before the first,
	// after one that the volume is not there, and where the volume was healthy long ago;
	// then CheckUnanswered is in Health.
	Verdict Verdict
	Health  []HealthEntry
	// Since is when it was first found abnormal; zero while it is not.
	Since time.Time
	// Due is when it is checked next, Tries how many heals of the
	// loop there were in a row.
	Due   time.Time
	Tries int
	// Left says why the loop tries no more; zero while it does, or nothing is wrong.
	Left LeftAlone
	// Error is what the loop's last heal failed at, until a check finds the volume healthy, or what a check failed at
	// after that, until the next has an answer. Failed is when; zero where Error is empty.
	Error  string
	Failed time.Time
}

// LoopState is what the loop knows of all volumes at one time.
type LoopState struct {
	// On is whether the loop checks volumes now; while it does not, nothing renews what it
	// saw. Searched is when a search last showed which volumes there are, before the first
	// when the loop was made. Both are known even if the loop hangs.
	On       bool
	Searched time.Time
	// Action is what the loop may do now: observe or heal; off or empty while it does nothing.
	Action string
	// Volumes has none once the loop has ended, and if it does not answer.
	Volumes []VolumeState
	// CheckedAll is true since the loop has checked all volumes that its first search found, or
	// told of those without an answer. Before, a volume that is not seen may be sick.
	CheckedAll bool
}
