package policy

import (
	"slices"
	"testing"

	"github.com/csi-addons/node-healer/pkg/healer"
	"github.com/csi-addons/node-healer/pkg/host"
)

// TestReasonsFor: what an interrupted step of ours left behind is never left to the
// driver.
func TestReasonsFor(t *testing.T) {
	placeholder := host.Mount{Attr: ^host.Attr(0)}
	for name, tc := range map[string]struct {
		stack []host.Mount
		want  []healer.Reason
	}{
		"an empty mount point":   {nil, []healer.Reason{healer.NotMounted}},
		"the driver's own mount": {[]host.Mount{{}}, []healer.Reason{healer.NotMounted}},
		"a placeholder of ours":  {[]host.Mount{placeholder, {}}, nil},
	} {
		step := healer.Step{MountPoint: healer.MountPoint{Path: "/p", Stack: tc.stack}, Heals: []healer.Reason{healer.NotMounted}}
		d := healer.Diagnosis{Conditions: []healer.Condition{
			{Reason: healer.NotMounted, MountPoint: "/p", Acute: true}, {Reason: healer.Disconnected, MountPoint: "/p"}, {Reason: healer.NotMounted, MountPoint: "/q"},
		}}
		if got := reasonsFor(d, step); !slices.Equal(got, tc.want) {
			t.Errorf("%s: %v, want %v", name, got, tc.want)
		}
	}
}
