package providertest_test

import (
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/csi-addons/node-healer/pkg/facts"
	"github.com/csi-addons/node-healer/pkg/healer"
	"github.com/csi-addons/node-healer/pkg/healer/provider/mounts"
	"github.com/csi-addons/node-healer/pkg/healer/providertest"
)

// kernel can do what the steps need; none is run.
type kernel struct{ mounts.Host }

func (kernel) CanReplace() bool { return true }
func (kernel) CanCover() bool   { return true }

func answers(a facts.Answer) providertest.Change {
	return providertest.Superblock(func(sb *healer.Superblock) { sb.Answer = a })
}

// The generic provider takes the volume for what it is said to be.
func TestVolume(t *testing.T) {
	for name, tc := range map[string]struct {
		change providertest.Change
		want   string
	}{
		"healthy":         {func(*healer.Case) {}, ""},
		"unrecorded":      {providertest.Unrecorded(), ""},
		"target lost":     {func(c *healer.Case) { c.MountPoints[0].Stack = nil }, "NotMounted rebind"},
		"staging lost":    {func(c *healer.Case) { c.MountPoints[1].Stack = nil }, "StagingNotMounted"},
		"stale":           {answers(facts.Answer{Asked: true, Op: "statx", Errno: syscall.ESTALE}), "StaleFileHandle"},
		"silent":          {answers(facts.Answer{Asked: true, TimedOut: true}), "NotResponding"},
		"nothing is left": {providertest.Superblock(func(sb *healer.Superblock) { sb.Space.Available = 0 }), "OutOfSpace"},
	} {
		for _, fsType := range []string{"ext4", "xfs", "nfs4", "fuse.x"} {
			c := providertest.Volume("driver.example", fsType, tc.change)()
			f, err := mounts.New(kernel{}).Examine(c)
			var got []string
			for _, cond := range f.Conditions {
				got = append(got, string(cond.Reason))
			}
			for _, s := range f.Steps {
				if s.Refused != "" {
					t.Errorf("%s, %s: %s is refused: %s", name, fsType, s.Name, s.Refused)
				}
				got = append(got, s.Name)
			}
			if err != nil || strings.Join(slices.Compact(got), " ") != tc.want {
				t.Errorf("%s, %s: %q %v, want %q", name, fsType, got, err, tc.want)
			}
		}
	}
}
