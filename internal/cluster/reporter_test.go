package cluster

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/csi-addons/node-healer/pkg/api"
	"github.com/csi-addons/node-healer/pkg/api/volumehealth"
	"github.com/csi-addons/node-healer/pkg/facts"
	"github.com/csi-addons/node-healer/pkg/healer"
)

// knownVolumes is a cluster: its subjects by volume id.
type knownVolumes struct{ sync.Map }

func (k *knownVolumes) subjects(_ context.Context, driver, id string, _ []string) (subjects, bool) {
	s, found := k.Load(id)
	if !found || driver != "csi.example.com" {
		return subjects{}, false
	}
	return s.(subjects), true
}

func (k *knownVolumes) nodeUID() types.UID { return "node-uid" }

// podHere returns whether a pod is one of the volumes' that are known; without one the pods
// are unknown.
func (k *knownVolumes) podHere(uid string) bool {
	known, here := false, false
	k.Range(func(_, s any) bool {
		known = true
		here = here || slices.ContainsFunc(s.(subjects).pods, func(p corev1.ObjectReference) bool { return string(p.UID) == uid })
		return true
	})
	return here || !known
}

// dataOf returns a claim and one pod that uses it.
func dataOf(name string) subjects {
	return subjects{
		claim: &corev1.ObjectReference{Kind: "PersistentVolumeClaim", APIVersion: "v1", Namespace: "app", Name: name, UID: types.UID("uid-" + name)},
		pods:  []corev1.ObjectReference{{Kind: "Pod", APIVersion: "v1", Namespace: "app", Name: name + "-0", UID: "pod-uid"}},
	}
}

// reporting runs a reporter in a bubble that knows the volume "v" of claim
// "data", with a function that ends it.
func reporting(t *testing.T, api *memoryAPI, known *knownVolumes) (r *reporter, end func()) {
	t.Helper()
	r = newReporter(api.client(t), "node-1", known)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); r.run(ctx) }()
	return r, func() { cancel(); <-done }
}

func oneVolume(t *testing.T) (*memoryAPI, *knownVolumes) {
	t.Helper()
	api := newMemoryAPI()
	api.add(t, claimNamed("data", "uid-data"))
	known := &knownVolumes{}
	known.Store("v", dataOf("data"))
	return api, known
}

func conditions(reasons ...healer.Reason) healer.Diagnosis {
	xfs := facts.Dev{Major: 7}
	d := healer.Diagnosis{Case: healer.Case{
		MountPoints: []healer.MountPoint{{Path: "/staged", Stack: []facts.Mount{{Dev: xfs, Root: "/", Path: "/staged"}}}},
		Superblocks: map[facts.Dev]healer.Superblock{xfs: {FSType: "xfs", Answer: facts.Answer{Asked: true, Errno: syscall.EIO}}},
	}}
	for _, r := range reasons {
		d.Conditions = append(d.Conditions, healer.Condition{Reason: r, MountPoint: "/p", Superblock: xfs})
	}
	return d
}

// The reports of volume "v" that tests are made of.
func of(id string, before, after healer.Diagnosis) healer.Report {
	return healer.Report{Driver: "csi.example.com", Volume: healer.Volume{ID: id}, Before: before, After: after}
}

func healthy() healer.Report { return of("v", healer.Diagnosis{}, healer.Diagnosis{}) }

func abnormal(reasons ...healer.Reason) healer.Report {
	return of("v", conditions(reasons...), conditions(reasons...))
}

func healed() healer.Report {
	r := of("v", conditions(healer.Disconnected), healer.Diagnosis{})
	r.Steps = []healer.Outcome{{Step: "rebind", MountPoint: "/p"}}
	return r
}

// inPart returns a report of a volume of which another mount point could not be judged.
func inPart(r healer.Report) healer.Report {
	r.After.Case.Unjudged = []healer.Unjudged{{MountPoint: healer.MountPoint{Path: "/of/another/pod"}}}
	return r
}

// unexamined returns a report of a volume that a provider could not examine.
func unexamined(r healer.Report) healer.Report {
	r.After.Failures = []healer.ProviderFailure{{Provider: "p"}}
	return r
}

func refusedFor(why string) healer.Report {
	r := abnormal(healer.Disconnected)
	r.Refused = []healer.Refusal{{Step: "rebind", MountPoint: "/p", Why: why}, {Step: "rebind", MountPoint: "/q", Why: why}}
	return r
}

func refusedNowhere() healer.Report {
	r := abnormal(healer.Disconnected)
	r.Refused = []healer.Refusal{{Step: "vendor", Why: "drained"}}
	return r
}

// failing is a report of a step that failed.
func failing(with error) healer.Report {
	r := abnormal(healer.Disconnected)
	r.Steps = []healer.Outcome{{Step: "replace", MountPoint: "/p", Err: with}}
	return r
}

// failingInTurn are reports of a step that failed in containers that ended, one after the other, and a last one.
func failingInTurn(n int, last healer.Report) (all []healer.Report) {
	for i := range n {
		r := failing(syscall.EBUSY)
		r.Steps[0].MountPoint = fmt.Sprint("/proc/", i, "/root/data")
		all = append(all, r)
	}
	return append(all, last)
}

func checked(r healer.Report) healer.Report { r.Checked = true; return r }

// left is a report of the loop, which tries no more.
func left(reason healer.LeftReason, because string) healer.Report {
	r := abnormal(healer.Disconnected)
	r.After.Conditions[0].Acute = true
	r.After.Steps = []healer.Step{{Name: "replace", MountPoint: healer.MountPoint{Path: "/p"}, Heals: []healer.Reason{healer.Disconnected}}}
	r.Left = healer.LeftAlone{Reason: reason, Because: because}
	return r
}

// without returns a report with what the last step failed at.
func without(r healer.Report, detail string) healer.Report {
	r.Left.Detail = detail
	return r
}

// words returns the same text for any report.
func words(text string) func(healer.Report) string {
	return func(healer.Report) string { return text }
}

// said lists the events on one object, in the order in which they were made, as
// "reason xcount: message", without the links.
func (a *memoryAPI) said(object string) []string {
	var all []string
	events := a.of("events")
	for _, name := range slices.Sorted(maps.Keys(events)) {
		e := events[name]
		if involved := e["involvedObject"].(map[string]any); involved["name"] == object {
			message, _, _ := strings.Cut(e["message"].(string), ". "+api.ConditionsURL)
			all = append(all, fmt.Sprintf("%s x%v: %s", e["reason"], e["count"], message))
		}
	}
	return all
}

var eventCases = map[string]struct {
	reports []healer.Report
	want    []string
}{
	"healthy at first": {reports: []healer.Report{healthy(), healthy()}},
	"abnormal, however often": {
		reports: []healer.Report{healthy(), abnormal(healer.Disconnected), abnormal(healer.Disconnected), checked(abnormal(healer.Disconnected))},
		want:    []string{"VolumeAbnormal x1: text 1"},
	},
	"other reasons": {
		reports: []healer.Report{
			abnormal(healer.Disconnected, healer.NotMounted), abnormal(healer.NotMounted, healer.Disconnected),
			abnormal(healer.Disconnected, healer.Disconnected),
		},
		want: []string{"VolumeAbnormal x1: text 0", "VolumeAbnormal x1: text 2"},
	},
	"healed in one call": {
		reports: []healer.Report{healthy(), healed(), healthy()},
		want:    []string{"VolumeHealed x1: text 1"},
	},
	"healed later": {
		reports: []healer.Report{abnormal(healer.Disconnected), healed()},
		want:    []string{"VolumeAbnormal x1: text 0", "VolumeHealed x1: text 1"},
	},
	"healed, as far as it could be judged": {
		reports: []healer.Report{abnormal(healer.Disconnected), inPart(healed()), inPart(healthy()), abnormal(healer.Disconnected)},
		want:    []string{"VolumeAbnormal x1: text 0", "VolumeHealed x1: text 1", "VolumeAbnormal x1: text 3"},
	},
	"came back by itself": {
		reports: []healer.Report{abnormal(healer.NotResponding), healthy(), healthy()},
		want:    []string{"VolumeAbnormal x1: text 0", "VolumeHealthy x1: text 1"},
	},
	"refused": {
		reports: []healer.Report{refusedFor("pid 1 is in the way"), refusedFor("pid 17 is in the way"), refusedFor("drained")},
		want: []string{
			"VolumeAbnormal x1: text 0",
			"VolumeHealRefused x1: refused: rebind: pid 1 is in the way",
			"VolumeHealRefused x1: refused: rebind: drained",
		},
	},
	"refused at no mount point": {
		reports: []healer.Report{refusedNowhere(), refusedNowhere()},
		want:    []string{"VolumeAbnormal x1: text 0", "VolumeHealRefused x1: refused: vendor: drained"},
	},
	"refused, with looks in between": {
		reports: []healer.Report{refusedFor("drained"), checked(refusedFor("a check")), refusedFor("drained")},
		want:    []string{"VolumeAbnormal x1: text 0", "VolumeHealRefused x1: refused: rebind: drained"},
	},
	"a step failed, again and again, after a check that said that a heal follows": {
		reports: []healer.Report{
			checked(abnormal(healer.Disconnected)), failing(syscall.EBUSY), checked(abnormal(healer.Disconnected)), failing(syscall.EBUSY),
			failing(syscall.EPERM), failing(syscall.EBUSY),
		},
		want: []string{"VolumeAbnormal x1: text 0", "VolumeAbnormal x1: text 1", "VolumeAbnormal x1: text 4"},
	},
	"the same step failed in each new container, then it is left alone": {
		reports: failingInTurn(2*maxSaid, left(healer.TerminalError, "another try cannot help")),
		want: []string{
			"VolumeAbnormal x1: text 0",
			"TerminalError x1: text 256. Not tried again: another try cannot help. " + triedAgain,
		},
	},
	"left alone, with calls in between": {
		reports: []healer.Report{
			abnormal(healer.Disconnected), left(healer.TerminalError, "another try cannot help"), abnormal(healer.Disconnected),
			checked(left(healer.TerminalError, "another try cannot help")),
		},
		want: []string{
			"VolumeAbnormal x1: text 0",
			"TerminalError x1: text 1. Not tried again: another try cannot help. " + triedAgain,
		},
	},
	"left alone once more, for another reason": {
		reports: []healer.Report{
			left(healer.TerminalError, "another try cannot help"), abnormal(healer.Disconnected),
			left(healer.TerminalError, "another one cannot"),
		},
		want: []string{
			"VolumeAbnormal x1: text 0",
			"TerminalError x1: text 0. Not tried again: another try cannot help. " + triedAgain,
			"TerminalError x1: text 2. Not tried again: another one cannot. " + triedAgain,
		},
	},
	"left alone for what the conditions say": {
		reports: []healer.Report{left("", "nothing is to be tried")},
		want:    []string{"VolumeAbnormal x1: text 0"},
	},
	"a permission is missing": {
		reports: []healer.Report{abnormal(healer.Disconnected), without(left(healer.PermissionMissing, "a permission is missing"), "replace at /p: not permitted. Fix: this. Check: that")},
		want: []string{
			"VolumeAbnormal x1: text 0",
			"PermissionMissing x1: text 1. Not tried again: a permission is missing: replace at /p: not permitted. Fix: this. Check: that. " + triedAgain,
		},
	},
	"refused once more": {
		reports: []healer.Report{refusedFor("drained"), healthy(), refusedFor("drained")},
		want: []string{
			"VolumeAbnormal x1: text 0", "VolumeHealRefused x2: refused: rebind: drained",
			"VolumeHealthy x1: text 1", "VolumeAbnormal x1: text 2",
		},
	},
}

func TestEvents(t *testing.T) {
	for name, tt := range eventCases {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				api, known := oneVolume(t)
				r, end := reporting(t, api, known)
				defer end()
				for i, report := range tt.reports {
					r.note(report, words(fmt.Sprint("text ", i)))
					time.Sleep(time.Second)
				}
				for _, object := range []string{"data", "data-0"} {
					if got := api.said(object); !slices.Equal(got, tt.want) {
						t.Errorf("%s: %q, want %q", object, got, tt.want)
					}
				}
			})
		})
	}
}

func TestEventIsComplete(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		memory, known := oneVolume(t)
		r, end := reporting(t, memory, known)
		defer end()
		r.note(abnormal(healer.Disconnected), words("abnormal: /p is dead"))
		time.Sleep(time.Second)
		var onPod object
		for _, e := range memory.of("events") {
			if e["involvedObject"].(object)["kind"] == "Pod" {
				onPod = e
			}
		}
		delete(onPod["metadata"].(object), "name")
		same(t, onPod, `{
			"kind": "Event", "apiVersion": "v1", "metadata": {"namespace": "app"},
			"involvedObject": {"kind": "Pod", "apiVersion": "v1", "namespace": "app", "name": "data-0", "uid": "pod-uid"},
			"type": "Warning", "reason": "VolumeAbnormal", "message": "abnormal: /p is dead. `+api.ConditionsURL+`Disconnected", "count": 1,
			"firstTimestamp": "2000-01-01T00:00:00Z", "lastTimestamp": "2000-01-01T00:00:00Z", "eventTime": null,
			"source": {"component": "node-healer", "host": "node-1"},
			"reportingComponent": "node-healer", "reportingInstance": "node-1"
		}`)
	})
}

func TestEventsFit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api, known := oneVolume(t)
		r, end := reporting(t, api, known)
		defer end()
		report := refusedFor("the driver said no\x1b[31m\n" + strings.Repeat("é", 2000))
		for i := range 20 {
			report.After = conditions(healer.Reason(fmt.Sprint("Reason", i)))
			r.note(report, words(fmt.Sprint(i, " ", strings.Repeat("é", 2000))))
			time.Sleep(time.Second)
		}
		said := api.said("data")
		for _, text := range said {
			_, message, _ := strings.Cut(text, ": ")
			if len(message) > 1024 || strings.ContainsAny(text, "\n\x1b") {
				t.Errorf("%d bytes: %s", len(message), text)
			}
		}
		if len(said) < 2 || len(said) > 10 {
			t.Errorf("%d events of a volume that changes all the time: %q", len(said), said)
		}
	})
}

func TestEventsWaitForTheAPI(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api, known := oneVolume(t)
		r, end := reporting(t, api, known)
		defer end()
		api.set(func(string, string) error { return errNoAPI })
		r.note(abnormal(healer.Disconnected), words("abnormal"))
		time.Sleep(time.Hour)
		r.note(healed(), words("healed"))
		api.set(nil)
		time.Sleep(time.Minute)
		want := []string{"VolumeAbnormal x1: abnormal", "VolumeHealed x1: healed"}
		if got := api.said("data-0"); !slices.Equal(got, want) {
			t.Errorf("got %q", got)
		}
	})
}

// An API that starts denies everything for a moment, before it has read the roles.
func TestReportsToAnAPIThatStarts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api, known := oneVolume(t)
		r, end := reporting(t, api, known)
		defer end()
		api.set(func(string, string) error { return errNoAPI })
		r.note(abnormal(healer.Disconnected), words("abnormal"))
		time.Sleep(time.Hour)
		var ready time.Time
		api.set(func(_, resource string) error {
			if ready.IsZero() {
				ready = time.Now().Add(15 * time.Second)
			}
			if time.Now().Before(ready) {
				return apierrors.NewForbidden(schema.GroupResource{Resource: resource}, "", nil)
			}
			return nil
		})
		time.Sleep(5 * time.Minute)
		if got := api.said("data-0"); !slices.Equal(got, []string{"VolumeAbnormal x1: abnormal"}) {
			t.Errorf("got %q", got)
		}
		if health(t, api, "data") == "" {
			t.Error("the claim has no annotation")
		}
	})
}

func TestEventsThatAreNotTaken(t *testing.T) {
	for name, refuse := range map[string]error{
		"forbidden":     apierrors.NewForbidden(schema.GroupResource{Resource: "events"}, "", nil),
		"webhook fails": apierrors.NewInternalError(errNoAPI),
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				api, known := oneVolume(t)
				r, end := reporting(t, api, known)
				defer end()
				api.set(func(_, resource string) error {
					if resource == "events" {
						return refuse
					}
					return nil
				})
				for range 1000 {
					r.note(abnormal(healer.Disconnected), words("abnormal"))
					time.Sleep(time.Second)
				}
				if n := api.count("create events"); n == 0 || n > 10 {
					t.Errorf("tried %d times", n)
				}
				api.set(nil)
				r.note(healed(), words("healed"))
				time.Sleep(time.Minute)
				if got := api.said("data"); !slices.Equal(got, []string{"VolumeHealed x1: healed"}) {
					t.Errorf("got %q", got)
				}
			})
		})
	}
}

func TestVolumeThatIsNotKnownYet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api, _ := oneVolume(t)
		known := &knownVolumes{}
		r, end := reporting(t, api, known)
		defer end()
		r.note(abnormal(healer.Disconnected), words("first"))
		time.Sleep(time.Second)
		if n := api.count(""); n > 0 {
			t.Errorf("asked %d times of an unknown volume", n)
		}
		known.Store("v", dataOf("data"))
		r.note(abnormal(healer.Disconnected), words("second"))
		time.Sleep(time.Second)
		if got := api.said("data"); !slices.Equal(got, []string{"VolumeAbnormal x1: second"}) {
			t.Errorf("got %q", got)
		}
		if health(t, api, "data") == "" {
			t.Error("the claim has no annotation")
		}
	})
}

// A volume's ID may be any text; klog writes what has a line feed as it is.
func TestLogOfAnIDWithControlCharacters(t *testing.T) {
	var logged bytes.Buffer
	logTo(t, &logged, "2")
	synctest.Test(t, func(t *testing.T) {
		r, end := reporting(t, newMemoryAPI(), &knownVolumes{})
		r.note(of("v\n\x1b[2J", healer.Diagnosis{}, conditions(healer.IOError)), words("sick"))
		synctest.Wait()
		end()
	})
	klog.Flush()
	if text := logged.String(); !strings.Contains(text, `volume_id="v\\n\\x1b[2J"`) || strings.Count(text, "\n") != 1 {
		t.Errorf("logged %q", text)
	}
}

// logTo has klog write to w until the test ends.
func logTo(t *testing.T, w io.Writer, verbosity string) {
	t.Helper()
	state := klog.CaptureState()
	t.Cleanup(state.Restore)
	var flags flag.FlagSet
	klog.InitFlags(&flags)
	for name, value := range map[string]string{"logtostderr": "false", "stderrthreshold": "FATAL", "v": verbosity} {
		if err := flags.Set(name, value); err != nil {
			t.Fatal(err)
		}
	}
	klog.SetOutput(w)
}

func TestNoteIsBounded(t *testing.T) {
	api, known := oneVolume(t)
	r := newReporter(api.client(t), "node-1", known) // it does not run
	for i := range 3 * maxVolumes {
		r.note(of(fmt.Sprint("v", i), healer.Diagnosis{}, conditions(healer.IOError)), words("abnormal"))
	}
	if r.volumes.Len() > maxVolumes || r.queue.Len() > maxVolumes || r.pending > maxPending {
		t.Errorf("%d volumes, %d queued, %d messages", r.volumes.Len(), r.queue.Len(), r.pending)
	}
}

// A driver's own healer writes nothing beside the node's, and knows since when a volume is sick.
func TestSilent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api, known := oneVolume(t)
		r, end := reporting(t, api, known)
		defer end()
		r.silent = true
		r.note(abnormal(healer.IOError), words("abnormal"))
		time.Sleep(time.Minute)
		if got := api.said("data"); len(got) > 0 || health(t, api, "data") != "" || r.pending > 0 {
			t.Errorf("%q, annotated with %q", got, health(t, api, "data"))
		}
		if r.foundSince(volumeKey{"csi.example.com", "v"}, healer.IOError).IsZero() {
			t.Error("does not know since when")
		}
	})
}

// Messages that did not fit are reported at the next checks.
func TestDroppedMessagesAreReportedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api, known := oneVolume(t)
		const volumes = 2 * maxPending
		for i := range volumes {
			name := fmt.Sprint("claim-", i)
			known.Store(fmt.Sprint("v", i), dataOf(name))
			api.add(t, claimNamed(name, types.UID("uid-"+name)))
		}
		r, end := reporting(t, api, known)
		defer end()
		for range 10 {
			for i := range volumes {
				r.note(of(fmt.Sprint("v", i), healer.Diagnosis{}, conditions(healer.IOError)), words("abnormal"))
			}
			time.Sleep(time.Minute)
		}
		for i := range volumes {
			name := fmt.Sprint("claim-", i)
			if got := api.said(name); !slices.Equal(got, []string{"VolumeAbnormal x1: abnormal"}) {
				t.Fatalf("%s: %q", name, got)
			}
			if health(t, api, name) == "" {
				t.Fatalf("%s has no annotation", name)
			}
		}
	})
}

// An API that is away for long is asked rarely, whatever the number of volumes, and
// not flooded when it is back.
func TestOutageWithManyVolumes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api, known := oneVolume(t)
		const volumes = maxPending + 50
		for i := range volumes {
			name := fmt.Sprint("claim-", i)
			known.Store(fmt.Sprint("v", i), dataOf(name))
			api.add(t, claimNamed(name, types.UID("uid-"+name)))
		}
		r, end := reporting(t, api, known)
		defer end()
		api.set(func(string, string) error { return errNoAPI })
		checkAll := func(times int) {
			for range times {
				for i := range volumes {
					r.note(of(fmt.Sprint("v", i), healer.Diagnosis{}, conditions(healer.IOError)), words("abnormal"))
				}
				time.Sleep(time.Minute)
			}
		}
		checkAll(20)
		if n := api.count(""); n > 60 {
			t.Errorf("asked %d times in twenty minutes without an API", n)
		}
		api.set(nil)
		for range 3 * 60 {
			before := api.count("")
			time.Sleep(time.Second)
			if n := api.count("") - before; n > requestQPS+requestBurst {
				t.Fatalf("%d requests in a second", n)
			}
		}
		checkAll(5)
		for i := range volumes {
			name := fmt.Sprint("claim-", i)
			if !strings.Contains(health(t, api, name), volumehealth.Unhealthy) || len(api.said(name)) != 1 {
				t.Fatalf("%s: %s, %q", name, health(t, api, name), api.said(name))
			}
		}
	})
}

// The recorder gives up on an event after two minutes. A volume without a claim has
// nothing else to wait for; its next change is reported.
func TestEventOfAVolumeWithoutClaimInALongOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api, known := oneVolume(t)
		inline := dataOf("inline")
		inline.claim = nil
		known.Store("v", inline)
		r, end := reporting(t, api, known)
		defer end()
		api.set(func(string, string) error { return errNoAPI })
		r.note(abnormal(healer.Disconnected), words("abnormal"))
		time.Sleep(time.Hour)
		if n := api.count("create events"); n != 12 {
			t.Errorf("tried %d times", n)
		}
		api.set(nil)
		r.note(healed(), words("healed"))
		time.Sleep(time.Minute)
		if got := api.said("inline-0"); !slices.Equal(got, []string{"VolumeHealed x1: healed"}) {
			t.Errorf("got %q", got)
		}
	})
}
