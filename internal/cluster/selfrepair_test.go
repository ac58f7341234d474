package cluster

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/csi-addons/node-healer/pkg/api/clustersettings"
	"github.com/csi-addons/node-healer/pkg/facts"
	"github.com/csi-addons/node-healer/pkg/healer"
	"github.com/csi-addons/node-healer/test/harness/kubetest"
)

func leaves(s selfRepair, driver string, reason healer.Reason) bool {
	return slices.Contains(s[driver], reason)
}

func TestDefaultSelfRepair(t *testing.T) {
	s := defaultSelfRepair()
	for _, tc := range []struct {
		driver string
		reason healer.Reason
		left   bool
	}{
		{"seaweedfs-csi-driver", healer.Disconnected, true},
		{"seaweedfs-csi-driver", healer.NotMounted, true},
		{"seaweedfs-csi-driver", healer.StaleInContainers, true},
		{"csi.juicefs.com", healer.StaleInContainers, false},
		{"seaweedfs-csi-driver", healer.NotResponding, false},
		{"csi.juicefs.com", healer.Disconnected, true},
		{"csi.juicefs.com", healer.NotMounted, false},
		{"driver.longhorn.io", healer.ReadOnlyFilesystem, true},
		{"driver.longhorn.io", healer.NotMounted, false},
		{"io.openebs.csi-mayastor", healer.PathsFailed, true},
		{"paddleflowstorage", healer.Disconnected, true},
		{"cephfs.csi.ceph.com", healer.Disconnected, false},
		{"hostpath.csi.k8s.io", healer.NotMounted, false},
		{"", healer.NotMounted, false},
	} {
		if got := leaves(s, tc.driver, tc.reason); got != tc.left {
			t.Errorf("%s is left to %q: %t, want %t", tc.reason, tc.driver, got, tc.left)
		}
	}
	for driver, reasons := range s {
		for _, r := range reasons {
			if !slices.Contains(healer.Reasons(), r) {
				t.Errorf("%s: %s is no reason", driver, r)
			}
		}
	}
	if leaves(nil, "csi.juicefs.com", healer.Disconnected) {
		t.Error("an empty list leaves something to somebody")
	}
}

func TestParseSelfRepair(t *testing.T) {
	for name, tc := range map[string]struct {
		text   string
		driver string
		reason healer.Reason
		left   bool
	}{
		"nothing said":        {driver: "csi.juicefs.com", reason: healer.Disconnected, left: true},
		"a new driver":        {text: "fuse.csi.fluid.io: [Disconnected]", driver: "fuse.csi.fluid.io", reason: healer.Disconnected, left: true},
		"the others stay":     {text: "fuse.csi.fluid.io: [Disconnected]", driver: "csi.juicefs.com", reason: healer.Disconnected, left: true},
		"other reasons":       {text: "csi.juicefs.com: [NotMounted]", driver: "csi.juicefs.com", reason: healer.NotMounted, left: true},
		"instead of those":    {text: "csi.juicefs.com: [NotMounted]", driver: "csi.juicefs.com", reason: healer.Disconnected},
		"off the list":        {text: "csi.juicefs.com: []", driver: "csi.juicefs.com", reason: healer.Disconnected},
		"off by nothing":      {text: "csi.juicefs.com:", driver: "csi.juicefs.com", reason: healer.Disconnected},
		"several, as a block": {text: "a:\n- IOError\n- Frozen\nb: []\n", driver: "a", reason: healer.Frozen, left: true},
	} {
		s, err := parseSelfRepair(tc.text)
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if got := leaves(s, tc.driver, tc.reason); got != tc.left {
			t.Errorf("%s: %s is left to %s: %t, want %t", name, tc.reason, tc.driver, got, tc.left)
		}
	}
}

func TestParseSelfRepairMistakes(t *testing.T) {
	for text, says := range map[string]string{
		"csi.juicefs.com: [Disconected]":       `"Disconected" is no reason`,
		"csi.juicefs.com: [disconnected]":      `"disconnected" is no reason`,
		"csi.juicefs.com: Disconnected":        "not a map of drivers",
		"[csi.juicefs.com]":                    "not a map of drivers",
		"csi.juicefs.com: [IOError\n":          "not a map of drivers",
		"a: []\na: [IOError]":                  "already set",
		"seaweedfs-csi-driver: [\"\"]\nb: [X]": `"X" is no reason`,
	} {
		s := parseSettings(map[string]string{clustersettings.SelfRepair: text})
		if s.err == nil || !strings.Contains(s.err.Error(), says) {
			t.Errorf("%q: got %v, want %q", text, s.err, says)
		}
		if !leaves(s.selfRepair, "csi.juicefs.com", healer.Disconnected) {
			t.Errorf("%q: a mistake took a driver off the list", text)
		}
	}
}

// TestReasonsFor: what an interrupted step of ours left behind is never left to the
// driver.
func TestReasonsFor(t *testing.T) {
	placeholder := facts.Mount{Attr: ^facts.Attr(0)}
	for name, tc := range map[string]struct {
		stack []facts.Mount
		want  []healer.Reason
	}{
		"an empty mount point":   {nil, []healer.Reason{healer.NotMounted}},
		"the driver's own mount": {[]facts.Mount{{}}, []healer.Reason{healer.NotMounted}},
		"a placeholder of ours":  {[]facts.Mount{placeholder, {}}, nil},
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

// graceCase is a volume whose pod's mount point is gone, with a driver that mounts it itself.
type graceCase struct {
	t    *testing.T
	api  *kubetest.API
	c    *Cluster
	d    healer.Diagnosis
	step healer.Step
}

// inGrace runs a test of a volume that is left to its driver for a time as the settings say it.
func inGrace(t *testing.T, grace string, run func(t *testing.T, g graceCase)) {
	synctest.Test(t, func(t *testing.T) {
		api := kubetest.NewAPI()
		newDisk(api)
		c, end := following(t, api)
		defer end()
		node := &thisHost{t: t}
		d, step := node.at(podMountPoint, false)
		g := graceCase{t: t, api: api, c: c.with(node), d: d, step: step}
		g.leave(grace)
		run(t, g)
	})
}

func (g graceCase) leave(grace string) {
	g.api.Put(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "healer", Name: "settings"}, Data: map[string]string{
		clustersettings.SelfRepair: fmt.Sprintf("%s: [%s]", kubetest.DriverName, healer.NotMounted), clustersettings.SelfRepairGrace: grace,
	}})
	synctest.Wait()
}

func (g graceCase) found(d healer.Diagnosis) {
	g.c.Note(healer.Report{Volume: d.Case.Volume, Driver: d.Case.Driver, After: d}, func(healer.Report) string { return "" })
}

// expectLeft finds the mount point gone once more, and asks whether that is left to the driver.
func (g graceCase) expectLeft(want bool) {
	g.t.Helper()
	g.found(g.d)
	p, err := g.c.Enter(g.t.Context(), g.d, g.step)
	if (healer.RuleOf(err) == healer.RuleSelfRepair) != want || err != nil && !want {
		g.t.Errorf("left: %v", err)
	}
	if err == nil {
		p.Leave(nil)
	}
}

// What is left to a driver is left for a time, from when a check first found it until one does not.
func TestSelfRepairGrace(t *testing.T) {
	inGrace(t, "", func(_ *testing.T, g graceCase) {
		g.expectLeft(true)
		time.Sleep(defaultSelfRepairGrace - time.Second)
		g.expectLeft(true)
		time.Sleep(2 * time.Second)
		g.expectLeft(false)

		g.found(healer.Diagnosis{Case: g.d.Case}) // it was repaired
		g.expectLeft(true)

		time.Sleep(2 * defaultSelfRepairGrace)
		unjudged := g.d.Case
		unjudged.Unjudged = []healer.Unjudged{{MountPoint: healer.MountPoint{Path: "/of/another/pod"}}}
		g.found(healer.Diagnosis{Case: unjudged}) // it was repaired, and another mount point is not judged
		g.expectLeft(true)
	})
}

func TestSelfRepairGraceOfADriverThatCameBack(t *testing.T) {
	inGrace(t, kubetest.DriverName+": 30s", func(_ *testing.T, g graceCase) {
		g.expectLeft(true)
		time.Sleep(time.Minute)
		g.expectLeft(false)

		daemon := aDaemon(hostPaths("/var/lib/kubelet/plugins/" + kubetest.DriverName))
		daemon.Namespace = metav1.NamespaceSystem
		ready := daemon.Status.Conditions
		for _, now := range [][]corev1.PodCondition{ready, nil, ready} {
			daemon.Status.Conditions = now
			g.api.Put(daemon.DeepCopy())
			synctest.Wait()
		}
		g.expectLeft(true) // it may be at work
		time.Sleep(31 * time.Second)
		g.expectLeft(false)

		g.leave(kubetest.DriverName + ": 1h") // what the settings say now counts
		g.expectLeft(true)
	})
}

func TestSelfRepairGraceWhenNobodyLooked(t *testing.T) {
	inGrace(t, kubetest.DriverName+": 1h", func(t *testing.T, g graceCase) {
		g.expectLeft(true)
		time.Sleep(sinceGap + time.Second) // it may have been repaired, and broken again
		g.expectLeft(true)
		time.Sleep(sinceGap / 2)
		g.expectLeft(true)
		time.Sleep(sinceGap / 2)
		g.expectLeft(false)
		if _, err := g.c.Order(kubetest.DriverName); err == nil || !strings.Contains(err.Error(), "repairs its volumes itself") {
			t.Error(err)
		}
	})
}
