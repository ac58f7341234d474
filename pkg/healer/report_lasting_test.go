package healer

import (
	"testing"

	"github.com/csi-addons/node-healer/pkg/facts"
)

// A staging mount point that a step left bare is not looked at twice before it is healed.
func TestLasting(t *testing.T) {
	bare := MountPoint{Role: RoleStaging, Path: "/staged"}
	dead := bare
	dead.Stack = []facts.Mount{{Path: "/staged", Dev: facts.Dev{Minor: 7}}}
	restage := func(at MountPoint, refused string) []Step {
		return []Step{{Cost: Restage, MountPoint: at, Heals: []Reason{StagingNotMounted, Disconnected}, Refused: refused}}
	}
	for name, tc := range map[string]struct {
		reason Reason
		acute  bool
		steps  []Step
		want   bool
	}{
		"nothing to do":       {reason: Disconnected},
		"ended":               {reason: Disconnected, acute: true, want: true},
		"may pass":            {reason: NotMounted, acute: true},
		"restaged":            {reason: Disconnected, steps: restage(dead, ""), want: true},
		"left bare":           {reason: StagingNotMounted, steps: restage(bare, ""), want: true},
		"left bare, refused":  {reason: StagingNotMounted, steps: restage(bare, "not now")},
		"left bare, and well": {reason: SlowResponse, steps: restage(bare, "")},
	} {
		d := Diagnosis{Conditions: []Condition{{Reason: tc.reason, MountPoint: "/staged", Acute: tc.acute}}, Steps: tc.steps}
		if d.Lasting() != tc.want {
			t.Errorf("%s: %v", name, d.Lasting())
		}
	}
}
