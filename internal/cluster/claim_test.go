package cluster

import (
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/csi-addons/node-healer/pkg/healer"
	"github.com/csi-addons/node-healer/test/harness/kubetest"
)

const healthOfNode = "csiaddons.openshift.io/volumehealth.node-uid"

// health returns the annotation of a claim for this node.
func health(t *testing.T, api *memoryAPI, claim string) string {
	t.Helper()
	meta := api.of("persistentvolumeclaims")[claim]["metadata"].(map[string]any)
	annotations, _ := meta["annotations"].(map[string]any)
	value, _ := annotations[healthOfNode].(string)
	return value
}

// A healthStep is a report, and what the claim says after it.
type healthStep struct {
	after  time.Duration // to the report
	report healer.Report
	want   string
}

// claimSays is an annotation of 2000-01-01, the first day of a synctest.
func claimSays(state, checked, since string) string {
	return `{"state":"` + state + `","lastChecked":"2000-01-01T` + checked + `Z","since":"2000-01-01T` + since + `Z","node":"node-1"}`
}

func claimEvictable(checked, reason string) string {
	return strings.TrimSuffix(claimSays("unhealthy", checked, "00:00:00"), "}") + `,"evictable":["` + reason + `"]}`
}

// oldHealth is what an earlier process wrote.
func oldHealth(state, checked string) string {
	return `{"state":"` + state + `","lastChecked":"` + checked + `","since":"1999-01-01T00:00:00Z","node":"old"}`
}

// keptHealth is oldHealth, checked by this process at the start.
const keptHealth = `{"state":"healthy","lastChecked":"2000-01-01T00:00:00Z","since":"1999-01-01T00:00:00Z","node":"node-1"}`

var claimHealth = map[string]struct {
	earlier string // what another process wrote
	steps   []healthStep
}{
	"changes are written at once": {steps: []healthStep{
		{time.Minute, healthy(), claimSays("healthy", "00:01:00", "00:01:00")},
		{time.Minute, abnormal(healer.Disconnected), claimSays("unhealthy", "00:02:00", "00:02:00")},
		{time.Minute, healed(), claimSays("healthy", "00:03:00", "00:03:00")},
	}},
	"what was not judged is not healthy, and no reason to evict": {steps: []healthStep{
		{0, abnormal(healer.IOError), claimEvictable("00:00:00", "IOError")},
		{time.Minute, inPart(healed()), claimSays("unhealthy", "00:00:00", "00:00:00")},
		{time.Minute, healthy(), claimSays("healthy", "00:02:00", "00:02:00")},
	}},
	"what was never judged": {steps: []healthStep{
		{0, inPart(healed()), ""},
		{time.Minute, healthy(), claimSays("healthy", "00:01:00", "00:01:00")},
	}},
	"the same is written when it is due": {steps: []healthStep{
		{0, abnormal(healer.Disconnected), claimSays("unhealthy", "00:00:00", "00:00:00")},
		{36 * time.Minute, checked(abnormal(healer.NotMounted)), claimSays("unhealthy", "00:00:00", "00:00:00")},
		{36 * time.Minute, abnormal(healer.Disconnected), claimSays("unhealthy", "01:12:00", "00:00:00")},
		{36 * time.Minute, abnormal(healer.Disconnected), claimSays("unhealthy", "01:12:00", "00:00:00")},
	}},
	"what pods may be evicted for is written at once": {steps: []healthStep{
		{0, abnormal(healer.Disconnected), claimSays("unhealthy", "00:00:00", "00:00:00")},
		{time.Minute, abnormal(healer.FilesystemShutdown), claimEvictable("00:01:00", "FilesystemShutdown")},
		{time.Minute, abnormal(healer.FilesystemShutdown), claimEvictable("00:01:00", "FilesystemShutdown")},
		{time.Minute, abnormal(healer.Disconnected), claimSays("unhealthy", "00:03:00", "00:00:00")},
	}},
	"pods are not evicted for what that does not end": {steps: []healthStep{
		{0, abnormal(healer.FilesystemShutdown, healer.DeviceMissing), claimSays("unhealthy", "00:00:00", "00:00:00")},
		{time.Minute, stale("no"), claimEvictable("00:01:00", "StaleInContainers")},
		{time.Minute, stale(""), claimSays("unhealthy", "00:02:00", "00:00:00")}, // a step does, as with --loop=observe
		{time.Minute, abnormal(healer.FilesystemShutdown), claimEvictable("00:03:00", "FilesystemShutdown")},
		{time.Minute, inPart(abnormal(healer.FilesystemShutdown)), claimSays("unhealthy", "00:04:00", "00:00:00")},
		{time.Minute, abnormal(healer.FilesystemShutdown), claimEvictable("00:05:00", "FilesystemShutdown")},
		{time.Minute, unexamined(abnormal(healer.FilesystemShutdown)), claimSays("unhealthy", "00:06:00", "00:00:00")},
	}},
	"since is kept across processes": {
		earlier: oldHealth("healthy", "1999-12-31T10:00:00Z"),
		steps: []healthStep{
			{0, healthy(), keptHealth},
		},
	},
	"what is not due is left alone": {
		earlier: oldHealth("healthy", "1999-12-31T23:59:00Z"),
		steps: []healthStep{
			{0, healthy(), oldHealth("healthy", "1999-12-31T23:59:00Z")},
			{time.Minute, abnormal(healer.Disconnected), claimSays("unhealthy", "00:01:00", "00:01:00")},
		},
	},
	"another state since then": {
		earlier: oldHealth("unhealthy", "1999-12-31T23:59:00Z"),
		steps: []healthStep{
			{0, healthy(), claimSays("healthy", "00:00:00", "00:00:00")},
		},
	},
	"written by a clock that is ahead": {
		earlier: oldHealth("healthy", "2001-01-01T00:00:00Z"),
		steps: []healthStep{
			{0, healthy(), keptHealth},
		},
	},
	"since a time to come": {
		earlier: `{"state":"healthy","lastChecked":"1999-12-31T23:59:00Z","since":"2001-01-01T00:00:00Z","node":"old"}`,
		steps: []healthStep{
			{0, healthy(), claimSays("healthy", "00:00:00", "00:00:00")},
		},
	},
	"longer than ours": {
		earlier: oldHealth("healthy", "1999-12-31T23:59:00."+strings.Repeat("0", 1024)+"Z"),
		steps: []healthStep{
			{0, healthy(), claimSays("healthy", "00:00:00", "00:00:00")},
		},
	},
	"no JSON": {
		earlier: `yes`,
		steps: []healthStep{
			{0, healthy(), claimSays("healthy", "00:00:00", "00:00:00")},
		},
	},
}

func TestHealthOfAClaim(t *testing.T) {
	for name, tt := range claimHealth {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				api, known := oneVolume(t)
				claim := claimNamed("data", "uid-data")
				claim.Annotations = map[string]string{"csiaddons.openshift.io/volumehealth.other-node": "theirs"}
				if tt.earlier != "" {
					claim.Annotations[healthOfNode] = tt.earlier
				}
				api.add(t, claim)
				r, end := reporting(t, api, known)
				defer end()
				for i, s := range tt.steps {
					time.Sleep(s.after)
					r.note(s.report, words("text"))
					synctest.Wait()
					if got := health(t, api, "data"); got != s.want {
						t.Errorf("%d: got %s, want %s", i, got, s.want)
					}
				}
				meta := api.of("persistentvolumeclaims")["data"]["metadata"].(object)
				if meta["annotations"].(object)["csiaddons.openshift.io/volumehealth.other-node"] != "theirs" {
					t.Error("another node's annotation was changed")
				}
			})
		})
	}
}

func TestHealthyChecksCostTheAPINothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api, known := oneVolume(t)
		r, end := reporting(t, api, known)
		defer end()
		for range 12 * 3600 {
			r.note(healthy(), words("healthy"))
			time.Sleep(time.Second)
		}
		// One read, and a write every 54 to 66 minutes.
		if gets, patches := api.count("get persistentvolumeclaims"), api.count("patch persistentvolumeclaims"); gets != 1 || patches < 10 || patches > 14 {
			t.Errorf("%d reads and %d writes for twelve hours of checks every second", gets, patches)
		}
		if n := api.count("create events"); n != 0 {
			t.Errorf("%d events", n)
		}
	})
}

func TestHealthWaitsForTheAPI(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api, known := oneVolume(t)
		r, end := reporting(t, api, known)
		defer end()
		api.set(func(string, string) error { return errNoAPI })
		for range 600 {
			r.note(abnormal(healer.IOError), words("abnormal"))
			time.Sleep(time.Second)
		}
		if n := api.count("get persistentvolumeclaims"); n > 40 {
			t.Errorf("asked %d times in ten minutes", n)
		}
		r.note(healed(), words("healed"))
		time.Sleep(time.Minute)
		api.set(nil)
		time.Sleep(time.Minute)
		want := `{"state":"healthy","lastChecked":"2000-01-01T00:10:00Z","since":"2000-01-01T00:10:00Z","node":"node-1"}`
		if got := health(t, api, "data"); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	})
}

func TestHealthIsNotForced(t *testing.T) {
	gone := metav1.NewTime(time.Unix(0, 0))
	tests := map[string]func(*testing.T, *memoryAPI, *knownVolumes){
		"on another claim of that name": func(t *testing.T, api *memoryAPI, _ *knownVolumes) {
			api.add(t, claimNamed("data", "uid-another"))
		},
		"on one that takes its name meanwhile": func(_ *testing.T, api *memoryAPI, _ *knownVolumes) {
			api.set(func(verb, _ string) error {
				if verb == "patch" {
					for _, claim := range api.objects {
						claim["metadata"].(object)["uid"] = "uid-another"
					}
				}
				return nil
			})
		},
		"on a claim that is going": func(t *testing.T, api *memoryAPI, _ *knownVolumes) {
			claim := claimNamed("data", "uid-data")
			claim.DeletionTimestamp = &gone
			api.add(t, claim)
		},
		"on no claim": func(_ *testing.T, _ *memoryAPI, known *knownVolumes) {
			known.Store("v", subjects{})
		},
		"without the right": func(_ *testing.T, api *memoryAPI, _ *knownVolumes) {
			api.set(func(verb, resource string) error {
				if verb == "patch" {
					return apierrors.NewForbidden(schema.GroupResource{Resource: resource}, "data", nil)
				}
				return nil
			})
		},
	}
	for name, spoil := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				api, known := oneVolume(t)
				spoil(t, api, known)
				r, end := reporting(t, api, known)
				defer end()
				for range 600 {
					r.note(healthy(), words("healthy"))
					time.Sleep(time.Second)
				}
				if got := health(t, api, "data"); got != "" {
					t.Errorf("wrote %s", got)
				}
				if n := api.count("get persistentvolumeclaims") + api.count("patch persistentvolumeclaims"); n > 20 {
					t.Errorf("asked %d times in ten minutes", n)
				}
			})
		})
	}
}

// The same error for a claim is logged once, also if another claim is written in
// between.
func TestHealthThatIsInvalid(t *testing.T) {
	logged := kubetest.CaptureLog(t, "0")
	synctest.Test(t, func(t *testing.T) {
		api, known := oneVolume(t)
		api.add(t, claimNamed("other", "uid-other"))
		known.Store("w", dataOf("other"))
		api.invalid = "data"
		r, end := reporting(t, api, known)
		defer end()
		for range 10 {
			r.note(healthy(), words("healthy"))
			synctest.Wait()
			r.note(of("w", healer.Diagnosis{}, healer.Diagnosis{}), words("healthy"))
			synctest.Wait()
			time.Sleep(2 * healthRefresh)
		}
		if health(t, api, "other") == "" {
			t.Error("the other claim has no annotation")
		}
	})
	if n := strings.Count(logged(), "a webhook does not like it"); n != 1 {
		t.Errorf("it is logged %d times:\n%s", n, logged())
	}
}

// A state that is found while the one before is written is written after it.
func TestHealthThatChangesMeanwhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api, known := oneVolume(t)
		r, end := reporting(t, api, known)
		defer end()
		r.note(abnormal(healer.Disconnected), words("abnormal"))
		time.Sleep(time.Minute)
		var once sync.Once
		api.set(func(verb, resource string) error {
			if verb == "patch" && resource == "persistentvolumeclaims" {
				once.Do(func() { r.note(abnormal(healer.Disconnected), words("abnormal")) })
			}
			return nil
		})
		r.note(healed(), words("healed"))
		time.Sleep(time.Minute)
		want := `{"state":"unhealthy","lastChecked":"2000-01-01T00:01:00Z","since":"2000-01-01T00:01:00Z","node":"node-1"}`
		if got := health(t, api, "data"); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	})
}

// A write that was refused is tried again also if the claim was unknown meanwhile.
func TestHealthAfterARefusalWithoutClaim(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api, known := oneVolume(t)
		r, end := reporting(t, api, known)
		defer end()
		api.set(func(_, resource string) error {
			return apierrors.NewForbidden(schema.GroupResource{Resource: resource}, "data", nil)
		})
		r.note(healthy(), words("healthy"))
		synctest.Wait()
		s := dataOf("data")
		known.Store("v", subjects{pods: s.pods})
		time.Sleep(time.Minute)
		known.Store("v", s)
		api.set(nil)
		for range 3 * 60 {
			r.note(healthy(), words("healthy"))
			time.Sleep(time.Minute)
		}
		if health(t, api, "data") == "" {
			t.Error("no annotation after three hours of healthy checks")
		}
	})
}

// Events of a claim wait for the API also if the annotation needs no write.
func TestEventsOfAClaimWaitForTheAPI(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api, known := oneVolume(t)
		r, end := reporting(t, api, known)
		defer end()
		r.note(abnormal(healer.IOError), words("first"))
		time.Sleep(time.Minute)
		api.set(func(string, string) error { return errNoAPI })
		r.note(abnormal(healer.NotMounted), words("second"))
		time.Sleep(10 * time.Minute)
		api.set(nil)
		for range 60 {
			r.note(abnormal(healer.NotMounted), words("second"))
			time.Sleep(time.Minute)
		}
		if said := api.said("data"); len(said) != 2 {
			t.Errorf("got %q", said)
		}
	})
}

// stale returns a report of a container with a dead instance, and of a step that would end that
// unless it is refused.
func stale(refused string) healer.Report {
	in := healer.MountPoint{Role: healer.RoleContainer, Path: "/p", PodUID: "a", InContainer: &healer.InContainer{}}
	d := healer.Diagnosis{
		Case:       healer.Case{MountPoints: []healer.MountPoint{in}},
		Conditions: []healer.Condition{{Reason: healer.StaleInContainers, MountPoint: in.Path, Acute: true}},
		Steps:      []healer.Step{{MountPoint: in, Heals: []healer.Reason{healer.StaleInContainers}, Refused: refused}},
	}
	return of("v", d, d)
}
