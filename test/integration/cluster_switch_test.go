package integration

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/csi-addons/node-healer/test/harness"
	"github.com/csi-addons/node-healer/test/harness/cluster"
)

// settings is the ConfigMap for the whole cluster, as the manifests name it.
func settings(data map[string]string) *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: ownNamespace, Name: ownConfigMap}, Data: data}
}

// Settings changes what holds for the whole cluster, until the test ends: then it
// is gone, and the next member applies the manifests.
func (m *member) Settings(data map[string]string) {
	m.T.Helper()
	m.T.Cleanup(func() { cluster.Delete(m.T, m.api, settings(nil)) })
	cluster.Change(m.T, m.api, settings(nil), func(s *corev1.ConfigMap) { s.Data = data })
}

const settingsName = "ConfigMap " + ownNamespace + "/" + ownConfigMap

// TestKillSwitch turns the whole cluster off and on while the server runs.
func TestKillSwitch(t *testing.T) {
	m := newMember(t)
	m.Start()
	v := m.ruled("switched")
	v.Heals()
	for name, c := range map[string]struct {
		data map[string]string
		is   func(ruled, ...string)
		says []string
	}{
		"check": {map[string]string{"mode": "check"}, ruled.Refused, []string{"mode check by " + settingsName + ", key mode"}},
		"off":   {map[string]string{"mode": "off"}, ruled.Off, []string{"mode off by " + settingsName + ", key mode"}},
		"a bad value": {
			map[string]string{"mode": "Off"},
			ruled.Refused,
			[]string{settingsName + ": key mode: ", `"Off" is none of off, check, heal, and counts as check`},
		},
		"no value":       {map[string]string{"mode": ""}, ruled.Refused, []string{settingsName + ": key mode: ", `"" is none of`}},
		"an unknown key": {map[string]string{"moed": "off"}, ruled.Refused, []string{settingsName + ": key moed: is none of mode,"}},
		"an unknown key beside heal": {
			map[string]string{"moed": "off", "mode": "heal"},
			ruled.Refused,
			[]string{settingsName + ": key moed: is none of mode,"},
		},
		"an unknown key beside off": {map[string]string{"moed": "heal", "mode": "off"}, ruled.Off, []string{settingsName}},
		"a bad list":                {map[string]string{"write-without-attachment": "all"}, ruled.Refused, []string{settingsName + ": key write-without-attachment: "}},
		"a bad map":                 {map[string]string{"driver-daemonsets": "[a]"}, ruled.Refused, []string{settingsName + ": key driver-daemonsets: "}},
		"a reason that is none": {
			map[string]string{"self-repairing-drivers": "a.example.com: [Broken]"},
			ruled.Refused,
			[]string{settingsName + ": key self-repairing-drivers: ", `"Broken" is no reason`},
		},
	} {
		t.Run(name, func(*testing.T) {
			m.Settings(c.data)
			c.is(v, c.says...)
			m.Settings(map[string]string{"mode": "heal"})
			v.Heals()
		})
	}
	t.Run("no settings at all", func(*testing.T) {
		m.Settings(map[string]string{"mode": "check"})
		v.Refused(settingsName)
		cluster.Delete(t, m.api, settings(nil))
		harness.Eventually(t, "it is gone", func() bool { return strings.Contains(m.Log.String(), "The settings of the cluster are gone") })
		v.Refused(settingsName) // no setting says heal
		cluster.Create(t, m.api, settings(map[string]string{"mode": "off"}))
		v.Off(settingsName)
		m.Settings(map[string]string{"mode": "heal"})
		v.Heals()
	})
}

// TestKillSwitchIsTheMost has an object allow more than the cluster does, and less.
func TestKillSwitchIsTheMost(t *testing.T) {
	m := newMember(t)
	m.Start()
	v := m.ruled("capped")
	pod := m.subject(v.pod)
	m.Settings(map[string]string{"mode": "check"})
	v.Refused(settingsName)
	pod.Mode("off")
	v.Off(pod.says)
	pod.Mode("heal")
	v.Refused(settingsName)
	pod.Mode("off")
	v.Off(pod.says)
	m.Settings(map[string]string{"mode": "heal"})
	v.Off(pod.says)
	pod.NoMode()
	v.Heals()
}

// TestKillSwitchDuringAStep turns the cluster off during a step: the step stops, its
// mount is removed, and the volume is healed once the cluster is on again.
func TestKillSwitchDuringAStep(t *testing.T) {
	for _, mode := range []string{"check", "off"} {
		named, unnamed := false, ""
		for _, instant := range instants {
			if !strings.HasPrefix(instant, "rebind/") {
				continue // it is asked for the last time right before finalize
			}
			t.Run(mode+" at "+instant, func(t *testing.T) {
				m := newMember(t)
				m.Pause = instant + ",finalize"
				m.Start()
				v := m.newClaimed("ext4", "midway")
				m.Expect("healthy", v.Request())
				mounted := m.Table()
				v.Lose()
				lost := m.Table()
				call := m.BeginAndStop(v.Request())
				m.Settings(map[string]string{"mode": mode})
				harness.Eventually(t, "the server knows", func() bool {
					return strings.Contains(m.Log.String(), `"The mode of the cluster changed" mode="`+mode+`"`)
				})
				call.Resume()
				// "finalize" is where it would become writable.
				a := call.Unstopped()
				m.SameTable(lost)
				if answer := a.GetMessage() + said(call.Err()); saysAll(answer, "mode "+mode+" by "+settingsName) {
					named = true
				} else if unnamed = answer; !m.IsTransient(answer) {
					t.Errorf("the answer is %s", answer)
				}
				m.Settings(map[string]string{"mode": "heal"})
				harness.Eventually(t, "the volume is healed", func() bool {
					a := m.Begin(v.Request()).LetGo()
					return a != nil && !a.GetAbnormal()
				})
				m.SameTable(mounted)
			})
		}
		if !named && unnamed != "" {
			t.Errorf("no answer names mode %s, as %s", mode, unnamed)
		}
	}
}

// TestSelfRepairingDriver leaves to a driver exactly what it repairs itself.
func TestSelfRepairingDriver(t *testing.T) {
	m := newMember(t)
	m.Start()
	v := m.ruled("left")
	left := func(drivers string) { m.Settings(map[string]string{"self-repairing-drivers": drivers}) }
	left(harness.Driver + ": [NotMounted]")
	v.Refused("NotMounted is left to driver "+harness.Driver, "self-repairing-drivers in "+settingsName)
	left(harness.Driver + ": [Disconnected, StaleFileHandle]")
	v.Heals()
	left(harness.Driver + ": [Disconnected, NotMounted]")
	v.Refused("NotMounted is left to driver " + harness.Driver)
	m.Settings(map[string]string{"self-repairing-drivers": harness.Driver + ": [NotMounted]", "self-repair-grace": harness.Driver + ": 1s"})
	v.Heals() // it did not
	left(harness.Driver + ": []")
	v.Heals()
	left("another.csi.example.com: [NotMounted]\n" + harness.Driver + ": [NotMuonted]")
	v.Refused(settingsName+": key self-repairing-drivers: ", harness.Driver, `"NotMuonted" is no reason`)
	left("another.csi.example.com: [NotMounted]")
	v.Heals()
	m.Settings(nil)
	v.Heals()
}
