package cluster

import (
	"strings"
	"testing"
	"testing/synctest"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/csi-addons/node-healer/pkg/api/clustersettings"
	"github.com/csi-addons/node-healer/test/harness/kubetest"
)

func TestParseLoop(t *testing.T) {
	for text, want := range map[string]string{
		"":             "",
		"- loop: heal": "",
		"- {nodeSelector: {a: b}, loop: heal}\n- loop: observe": "",
		"- loop: mend":               `rule 1: "mend" is none of off, observe, heal`,
		"- nodeSelector: {a: b}":     `rule 1: "" is none of`,
		"heal":                       "not a list",
		"- {loop: heal, nodes: [a]}": "not a list",
	} {
		_, err := parseLoop(text)
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
}

// The first rule that fits the node counts, else the flag; settings that cannot be read
// let the loop observe at most.
func TestLoopByNode(t *testing.T) {
	const canary = `- {nodeSelector: {canary: "true"}, loop: heal}`
	for name, tc := range map[string]struct {
		settings string
		labels   map[string]string
		flag     string
		want     string
	}{
		"no settings":      {flag: LoopHeal, want: LoopHeal},
		"a canary":         {settings: canary, labels: map[string]string{"canary": "true"}, flag: LoopObserve, want: LoopHeal},
		"no such label":    {settings: `- {nodeSelector: {canary: ""}, loop: heal}`, labels: map[string]string{"other": ""}, flag: LoopObserve, want: LoopObserve},
		"another node":     {settings: canary, labels: map[string]string{"canary": "false"}, flag: LoopObserve, want: LoopObserve},
		"the first counts": {settings: canary + "\n- loop: off", flag: LoopHeal, want: LoopOff},
		"bad settings":     {settings: "- loop: mend", flag: LoopHeal, want: LoopObserve},
		"bad, and off":     {settings: "- loop: mend", flag: LoopOff, want: LoopOff},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				api, node := kubetest.NewAPI(), kubetest.Node()
				node.Labels = tc.labels
				api.Put(node)
				if tc.settings != "" {
					api.Put(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "healer", Name: "settings"}, Data: map[string]string{clustersettings.Loop: tc.settings}})
				}
				p, end := following(t, api)
				defer end()
				if got := p.Loop(tc.flag); got != tc.want {
					t.Errorf("%s, want %s", got, tc.want)
				}
			})
		})
	}
}

// Before the settings were read, nothing heals by itself.
func TestLoopBeforeTheSettings(t *testing.T) {
	if got := clusterOf(t, kubetest.NewAPI()).Loop(LoopHeal); got != LoopObserve {
		t.Errorf("%s", got)
	}
}

// The labels of a Node that was deleted have nothing heal by itself, although a step read it.
func TestLoopOfADeletedNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api, node := kubetest.NewAPI(), kubetest.Node()
		node.Labels = map[string]string{"canary": "true"}
		api.Put(node, theSettings(map[string]string{clustersettings.Loop: `- {nodeSelector: {canary: "true"}, loop: heal}`}))
		c, end := following(t, api)
		defer end()
		if err := c.Answers(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got := c.Loop(LoopHeal); got != LoopHeal {
			t.Errorf("before: %s", got)
		}
		api.Remove(node)
		synctest.Wait()
		if got := c.Loop(LoopHeal); got != LoopObserve {
			t.Errorf("%s, want %s", got, LoopObserve)
		}
		if uid := c.nodeUID(); uid != "" {
			t.Errorf("claims are annotated for the deleted node %s", uid)
		}
	})
}
