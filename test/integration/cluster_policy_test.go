package integration

import (
	"strings"
	"testing"

	"github.com/csi-addons/node-healer/test/harness"
	"github.com/csi-addons/node-healer/test/harness/cluster"
)

// TestModeOfAnObject puts each mode on each object that may have one, and takes
// it off again.
func TestModeOfAnObject(t *testing.T) {
	m := newMember(t)
	m.Start()
	v := m.ruled("moody")
	for _, s := range v.subjects() {
		t.Run(s.kind, func(*testing.T) {
			word := s.says + ", annotation " + modeOfHealing
			s.Mode("off")
			v.Off("mode off by " + word)
			s.Mode("check")
			v.Refused("mode check by " + word)
			s.Mode("heal")
			v.Heals()
			for _, bad := range []string{"Heal", "heal ", "", "on"} {
				s.Mode(bad)
				v.Refused(word, `"`+bad+`" is none of off, check, heal, and counts as check`)
			}
			s.NoMode()
			v.Heals()
		})
	}
}

// TestMostSpecificMode has two objects disagree, in both directions. Each mode is
// seen to count by itself before the other one comes.
func TestMostSpecificMode(t *testing.T) {
	m := newMember(t)
	m.Start()
	v := m.ruled("torn")
	all := v.subjects()
	for i, general := range all {
		for _, specific := range all[i+1:] {
			t.Run(general.kind+" and "+specific.kind, func(*testing.T) {
				general.Mode("off")
				v.Off(general.says)
				specific.Mode("heal")
				v.Heals()
				specific.Mode("a typo")
				v.Refused(specific.says)
				specific.NoMode()
				v.Off(general.says)

				general.Mode("heal")
				v.Heals()
				specific.Mode("check")
				v.Refused(specific.says)
				specific.NoMode()
				v.Heals()
				general.NoMode()
			})
		}
	}
}

// TestModeOfTwoPods has two pods that share a volume disagree: for each place its
// own pod's word counts, and for the staged one, which is nobody's, the stricter.
func TestModeOfTwoPods(t *testing.T) {
	m := newMember(t)
	m.Start()
	v := m.ruled("shared")
	other := cluster.Create(t, m.api, cluster.Pod(m.namespace, "other", thisNode, v.object.Claim))
	place := v.PlaceOf(string(other.UID))
	v.Publish(string(other.UID))
	// A place that is empty and not named counts only where a container uses it.
	m.NewContainer(string(other.UID), place)
	v.Heals()
	theirs, staged := m.subject(other), v.Request()
	staged.VolumePath = v.Staging

	theirs.Mode("off")
	harness.Eventually(t, "the staged place is off", func() bool {
		return saysAll(m.answer(staged), "Unknown: ", "not looked at", theirs.says)
	})
	v.Heals()

	theirs.Mode("check")
	harness.Eventually(t, "the staged place is not off", func() bool {
		return !saysAll(m.answer(staged), "not looked at")
	})
	harness.Run(t, "umount", place)
	m.Expect("abnormal", v.Request(), "Done: rebind", "Refused: rebind", "mode check by "+theirs.says)
	if m.mounted(place) || !m.mounted(v.Place()) {
		t.Errorf("want only %s mounted\n%s", v.Place(), strings.Join(m.Table(), "\n"))
	}
}
