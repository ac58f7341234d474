package kube

import (
	"slices"
	"strings"
	"testing"

	"github.com/csi-addons/node-healer/pkg/healer"
)

func TestParseSettings(t *testing.T) {
	for name, tc := range map[string]struct {
		data map[string]string
		want mode
		// trouble has the words of what cannot be read; none: all can be.
		trouble []string
	}{
		"nothing":                  {nil, modeHeal, nil},
		"heal":                     {map[string]string{"mode": "heal"}, modeHeal, nil},
		"check":                    {map[string]string{"mode": "check"}, modeCheck, nil},
		"off":                      {map[string]string{"mode": "off"}, modeOff, nil},
		"lists that are empty":     {map[string]string{"write-without-attachment": "", "driver-daemonsets": "", "self-repairing-drivers": ""}, modeHeal, nil},
		"a bad mode":               {map[string]string{"mode": "of"}, modeCheck, []string{"key mode: ", `"of"`}},
		"a line's end":             {map[string]string{"mode": "off\n"}, modeCheck, []string{"key mode: ", `"off\n"`}},
		"an unknown key":           {map[string]string{"mod": "off"}, modeCheck, []string{"key mod: ", "mode, self-repairing-drivers, write-without-attachment, driver-daemonsets, driver-namespaces"}},
		"an unknown key, and off":  {map[string]string{"mod": "off", "mode": "off"}, modeOff, []string{"key mod: "}},
		"no list":                  {map[string]string{"write-without-attachment": "a.example.com"}, modeCheck, []string{"key write-without-attachment: "}},
		"no map":                   {map[string]string{"driver-daemonsets": "- a"}, modeCheck, []string{"key driver-daemonsets: "}},
		"no YAML":                  {map[string]string{"driver-daemonsets": "\t{"}, modeCheck, []string{"key driver-daemonsets: "}},
		"no namespaces":            {map[string]string{"driver-namespaces": "storage"}, modeCheck, []string{"key driver-namespaces: "}},
		"no name of a namespace":   {map[string]string{"driver-namespaces": "[storage, Stor_age]"}, modeCheck, []string{"key driver-namespaces: ", `"Stor_age" is no name of a namespace`}},
		"a driver named twice":     {map[string]string{"driver-daemonsets": "a: b/c\na: b/d"}, modeCheck, []string{"key driver-daemonsets: "}},
		"a reason that is none":    {map[string]string{"self-repairing-drivers": "a: [Tired]"}, modeCheck, []string{"key self-repairing-drivers: ", `"Tired"`}},
		"several things are wrong": {map[string]string{"mode": "x", "y": "", "driver-daemonsets": "- a"}, modeCheck, []string{"key mode: ", "key y: ", "key driver-daemonsets: "}},
	} {
		s := parseSettings(tc.data)
		if s.mode != tc.want || (s.trouble != nil) != (tc.trouble != nil) {
			t.Errorf("%s: mode %s, %v", name, s.mode, s.trouble)
		}
		for _, word := range tc.trouble {
			if s.trouble == nil || !strings.Contains(s.trouble.Error(), word) {
				t.Errorf("%s: %v lacks %q", name, s.trouble, word)
			}
		}
	}
}

// TestSettingsThatAreRight are taken over, and wrong ones beside them forbid what
// the right ones allow.
func TestSettingsThatAreRight(t *testing.T) {
	data := map[string]string{
		"write-without-attachment": "[local.example.com]",
		"driver-namespaces":        "[storage, kube-system]",
		"driver-daemonsets":        "a.example.com: storage/a-node\nb.example.com: storage/b-node",
		"self-repairing-drivers":   "a.example.com: [NotMounted]\ncsi.juicefs.com: []",
	}
	s := parseSettings(data)
	if s.trouble != nil || s.mode != modeHeal || !slices.Equal(s.writeWithoutAttachment, []string{"local.example.com"}) ||
		!slices.Equal(s.driverNamespaces, []string{"storage", "kube-system"}) || len(s.daemonSets) != 2 || s.daemonSets["b.example.com"] != "storage/b-node" {
		t.Errorf("got %+v", s)
	}
	if !s.selfRepair.Leaves("a.example.com", healer.NotMounted) || s.selfRepair.Leaves("csi.juicefs.com", healer.Disconnected) ||
		!s.selfRepair.Leaves("driver.longhorn.io", healer.IOError) {
		t.Errorf("left to drivers is %v", s.selfRepair)
	}
	data["typo"] = "x"
	if s := parseSettings(data); s.mode != modeCheck || s.writeWithoutAttachment != nil {
		t.Errorf("beside a typo: %+v", s)
	}
}

// TestRules follow the ConfigMap as it comes, changes and goes.
func TestRules(t *testing.T) {
	c, err := NewCluster(configOf(t, newClusterAPI()))
	if err != nil {
		t.Fatal(err)
	}
	store := c.configMap.GetIndexer()
	is := func(want mode, text string) {
		t.Helper()
		s := c.rules()
		if s.mode != want || text != "" && (s.trouble == nil || !strings.Contains(s.trouble.Error(), text)) {
			t.Errorf("mode %s, %v", s.mode, s.trouble)
		}
	}
	is(modeHeal, "")
	for _, change := range []struct {
		word string
		mode mode
		text string
	}{{"off", modeOff, ""}, {"heal", modeHeal, ""}, {"bad", modeCheck, "bad"}, {"check", modeCheck, ""}} {
		if err := store.Add(theSettings(map[string]string{keyMode: change.word})); err != nil {
			t.Fatal(err)
		}
		is(change.mode, change.text)
		is(change.mode, change.text)
	}
	if err := store.Delete(theSettings(nil)); err != nil {
		t.Fatal(err)
	}
	is(modeCheck, "") // nobody said heal
	r := c.ruling(view{settings: parseSettings(map[string]string{keyMode: "bad"})})
	if err := r.forbids(modeHeal); err == nil || !strings.Contains(err.Error(), `ConfigMap healer/settings: key mode: "bad"`) {
		t.Errorf("got %v", err)
	}
}
