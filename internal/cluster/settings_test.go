package cluster

import (
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/csi-addons/node-healer/pkg/api/clustersettings"
	"github.com/csi-addons/node-healer/pkg/healer"
	"github.com/csi-addons/node-healer/test/harness/kubetest"
)

var parseSettingsExamples = map[string]struct {
	data map[string]string
	want mode
	// errs are parts of the error; none: there is none.
	errs []string
}{
	"nothing": {want: modeHeal},
	"heal":    {data: map[string]string{"mode": "heal"}, want: modeHeal},
	"check":   {data: map[string]string{"mode": "check"}, want: modeCheck},
	"off":     {data: map[string]string{"mode": "off"}, want: modeOff},
	"lists that are empty": {
		data: map[string]string{"write-without-attachment": "", "driver-daemonsets": "", "self-repairing-drivers": ""},
		want: modeHeal,
	},
	"a bad mode":   {data: map[string]string{"mode": "of"}, want: modeCheck, errs: []string{"key mode: ", `"of"`}},
	"a line's end": {data: map[string]string{"mode": "off\n"}, want: modeCheck, errs: []string{"key mode: ", `"off\n"`}},
	"an unknown key": {
		data: map[string]string{"mod": "off"},
		want: modeCheck,
		errs: []string{
			"key mod: ",
			"mode, loop, self-repairing-drivers, self-repair-grace, restage-drivers, write-without-attachment, driver-daemonsets, driver-namespaces",
		},
	},
	"an unknown key, and off": {data: map[string]string{"mod": "off", "mode": "off"}, want: modeOff, errs: []string{"key mod: "}},
	"no list": {
		data: map[string]string{"write-without-attachment": "a.example.com"},
		want: modeCheck,
		errs: []string{"key write-without-attachment: "},
	},
	"no map":  {data: map[string]string{"driver-daemonsets": "- a"}, want: modeCheck, errs: []string{"key driver-daemonsets: "}},
	"no YAML": {data: map[string]string{"driver-daemonsets": "\t{"}, want: modeCheck, errs: []string{"key driver-daemonsets: "}},
	"no namespaces": {
		data: map[string]string{"driver-namespaces": "storage"},
		want: modeCheck,
		errs: []string{"key driver-namespaces: "},
	},
	"no name of a namespace": {
		data: map[string]string{"driver-namespaces": "[storage, Stor_age]"},
		want: modeCheck,
		errs: []string{"key driver-namespaces: ", `"Stor_age" is no name of a namespace`},
	},
	"a driver named twice": {
		data: map[string]string{"driver-daemonsets": "a: b/c\na: b/d"},
		want: modeCheck,
		errs: []string{"key driver-daemonsets: "},
	},
	"a reason that is none": {
		data: map[string]string{"self-repairing-drivers": "a: [Tired]"},
		want: modeCheck,
		errs: []string{"key self-repairing-drivers: ", `"Tired"`},
	},
	"a grace that is none": {
		data: map[string]string{"self-repair-grace": "a: 2\nb: -1s"},
		want: modeCheck,
		errs: []string{"key self-repair-grace: ", `driver "a"`, `driver "b"`},
	},
	"several things are wrong": {
		data: map[string]string{"mode": "x", "y": "", "driver-daemonsets": "- a"},
		want: modeCheck,
		errs: []string{"key mode: ", "key y: ", "key driver-daemonsets: "},
	},
}

func TestParseSettings(t *testing.T) {
	for name, tc := range parseSettingsExamples {
		s := parseSettings(tc.data)
		if s.mode != tc.want || (s.err != nil) != (tc.errs != nil) {
			t.Errorf("%s: mode %s, %v", name, s.mode, s.err)
		}
		for _, word := range tc.errs {
			if s.err == nil || !strings.Contains(s.err.Error(), word) {
				t.Errorf("%s: %v lacks %q", name, s.err, word)
			}
		}
	}
}

// TestParseValidSettings: one invalid key beside valid ones forbids what these allow.
func TestParseValidSettings(t *testing.T) {
	data := map[string]string{
		"write-without-attachment": "[local.example.com]",
		"driver-namespaces":        "[storage, kube-system]",
		"driver-daemonsets":        "a.example.com: storage/a-node\nb.example.com: storage/b-node",
		"self-repairing-drivers":   "a.example.com: [NotMounted]\ncsi.juicefs.com: []",
	}
	s := parseSettings(data)
	if s.err != nil || s.mode != modeHeal || !slices.Equal(s.writeWithoutAttachment, []string{"local.example.com"}) ||
		!slices.Equal(s.driverNamespaces, []string{"storage", "kube-system"}) || len(s.daemonSets) != 2 || s.daemonSets["b.example.com"] != "storage/b-node" {
		t.Errorf("got %+v", s)
	}
	if !leaves(s.selfRepair, "a.example.com", healer.NotMounted) || leaves(s.selfRepair, "csi.juicefs.com", healer.Disconnected) ||
		!leaves(s.selfRepair, "driver.longhorn.io", healer.IOError) {
		t.Errorf("left to drivers is %v", s.selfRepair)
	}
	data["typo"] = "x"
	if s := parseSettings(data); s.mode != modeCheck || s.writeWithoutAttachment != nil {
		t.Errorf("beside a typo: %+v", s)
	}
}

// TestLatestSettings: the settings follow the ConfigMap as it comes, changes and goes.
func TestLatestSettings(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := kubetest.NewAPI()
		api.Put(kubetest.Node())
		c, end := following(t, api)
		defer end()
		is := func(want mode, text string) {
			t.Helper()
			s := c.currentSettings()
			if s.mode != want || text != "" && (s.err == nil || !strings.Contains(s.err.Error(), text)) {
				t.Errorf("mode %s, %v", s.mode, s.err)
			}
		}
		is(modeHeal, "")
		for _, change := range []struct {
			word string
			mode mode
			text string
		}{{"off", modeOff, ""}, {"heal", modeHeal, ""}, {"bad", modeCheck, "bad"}, {"check", modeCheck, ""}} {
			api.Put(theSettings(map[string]string{clustersettings.Mode: change.word}))
			synctest.Wait()
			is(change.mode, change.text)
			is(change.mode, change.text)
		}
		api.Remove(theSettings(nil))
		synctest.Wait()
		is(modeCheck, "") // a deletion is no permission to heal
		r := c.mode(&view{settings: parseSettings(map[string]string{clustersettings.Mode: "bad"})})
		if err := r.require(modeHeal); err == nil || !strings.Contains(err.Error(), `ConfigMap healer/settings: key mode: "bad"`) {
			t.Errorf("got %v", err)
		}
	})
}

// TestEveryKeyIsKnown to the controller, too.
func TestEveryKeyIsKnown(t *testing.T) {
	read, known := slices.Sorted(maps.Keys(readSetting)), slices.Sorted(slices.Values(clustersettings.Keys))
	if !slices.Equal(read, known) {
		t.Errorf("read %v, known %v", read, known)
	}
	if s := parseSettings(map[string]string{"evict": "drivers: [a]"}); s.err != nil || s.mode != modeHeal {
		t.Errorf("got %+v", s)
	}
	if s := parseSettings(map[string]string{"evict": "drivers: [a]\nreasons: [DeviceMissing]"}); s.err == nil || s.mode != modeCheck {
		t.Errorf("got %+v", s)
	}
}
