package nodeserver

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/csi-addons/node-healer/internal/printable"
	"github.com/csi-addons/node-healer/pkg/api/adminpb"
	"github.com/csi-addons/node-healer/pkg/facts"
	"github.com/csi-addons/node-healer/pkg/healer"
)

var testDev = facts.Dev{Major: 7, Minor: 1}

func publishedAt(path string, attr facts.Attr) healer.MountPoint {
	return healer.MountPoint{
		Role: healer.RoleTarget, Path: path, Named: true,
		Stack: []facts.Mount{{Dev: testDev, FSType: "ext4", Attr: attr}},
	}
}

func stagedAt(path string) healer.MountPoint {
	return healer.MountPoint{
		Role: healer.RoleStaging, Path: path, Named: true,
		Stack: []facts.Mount{{Dev: testDev, FSType: "ext4"}},
	}
}

func answering(d time.Duration, mountPoints ...healer.MountPoint) healer.Case {
	return healer.Case{
		MountPoints: mountPoints,
		Superblocks: map[facts.Dev]healer.Superblock{testDev: {Dev: testDev, Answer: facts.Answer{Asked: true, Elapsed: d}}},
	}
}

// containerAt returns the mount point of a container's /data.
func containerAt(pid int, podUID string) healer.MountPoint {
	in := &healer.InContainer{ContainerMount: facts.ContainerMount{
		Container: facts.Container{Workload: facts.Workload{PodUID: podUID, ContainerID: "0123456789abcdef"}, PID: pid}, Mount: facts.Mount{Path: "/data"},
	}}
	return healer.MountPoint{Role: healer.RoleContainer, Path: in.Path(), PodUID: podUID, InContainer: in}
}

// stepsAt are steps that ran at mount points /0, /1 and so on.
func stepsAt(n int) []healer.Outcome {
	steps := make([]healer.Outcome, n)
	for i := range steps {
		steps[i] = healer.Outcome{Step: "s", MountPoint: fmt.Sprint("/", i)}
	}
	return steps
}

func sick(c healer.Case, conditions ...healer.Condition) healer.Diagnosis {
	return healer.Diagnosis{Case: c, Conditions: conditions}
}

// What the cases below are made of: a volume that is staged at /s and published at /p, and what
// may be wrong with it.
var (
	staged    = stagedAt("/s")
	published = publishedAt("/p", 0)
	both      = answering(3*time.Millisecond, staged, published)
	well      = healer.Diagnosis{Case: both}
	gone      = healer.MountPoint{Role: healer.RoleStaging, Path: "/s", Named: true}

	notMounted = healer.Condition{
		Status: healer.Inaccessible, Reason: healer.NotMounted, MountPoint: "/p", Acute: true,
		Message: "nothing is mounted here, recorded: ext4 from /dev/loop1", Advice: "restart the pod",
	}
	shutdown = healer.Condition{
		Status: healer.Inaccessible, Reason: healer.FilesystemShutdown, MountPoint: "/s",
		Message: "super option shutdown", Advice: "unmount it everywhere, then check it",
	}
	noMonitor = healer.Diagnosis{Case: both, Failures: []healer.ProviderFailure{{Provider: "ceph", Err: errors.New("no monitor")}}}
	rebound   = healer.Outcome{Step: "rebind", MountPoint: "/p"}
)

// found is what only a diagnosis says, as of a check.
func found(mountPoints healer.Case) healer.Report {
	return healer.Report{After: healer.Diagnosis{Case: mountPoints}}
}

// unhealed is a report of what stays as it is.
func unhealed(d healer.Diagnosis, steps ...healer.Outcome) healer.Report {
	return healer.Report{Before: d, After: d, Steps: steps}
}

// healedBy is a report of a target that was not mounted, and is well after these steps.
func healedBy(steps ...healer.Outcome) healer.Report {
	return healer.Report{Before: sick(both, notMounted), After: well, Steps: steps}
}

func unjudged(c healer.Case) healer.Case {
	c.Unjudged = []healer.Unjudged{
		{MountPoint: publishedAt("/q", 0), Why: "nothing shows that it is wanted: no answer"},
		{MountPoint: publishedAt("/r", 0), Why: "so is that"},
	}
	return c
}

// refusedTwice is a report with two conditions, and a step that was refused at two attempts.
func refusedTwice() healer.Report {
	refusal := healer.Refusal{Step: "rebind", MountPoint: "/p", Why: "no running container has it mounted"}
	return healer.Report{
		Before: sick(both, shutdown, notMounted), After: sick(both, notMounted, shutdown), Refused: []healer.Refusal{refusal, refusal},
	}
}

// TestMessageOfEachVerdict shows one whole message for each.
func TestMessageOfEachVerdict(t *testing.T) {
	for _, tc := range []struct {
		report healer.Report
		want   string
	}{
		{unhealed(well), "healthy: target /p (ext4, rw) and staging /s (ext4, rw) answered"},
		{
			healedBy(rebound),
			"healed: target /p: NotMounted (nothing is mounted here, recorded: ext4 from /dev/loop1). " +
				"Done: rebind of the target. " +
				"Now the target (ext4, rw) and the staging mount point (ext4, rw) answered",
		},
		{
			refusedTwice(),
			"abnormal: target /p: NotMounted (nothing is mounted here, recorded: ext4 from /dev/loop1); " +
				"staging /s: FilesystemShutdown (super option shutdown). Nothing was changed. " +
				"Refused: rebind of the target (no running container has it mounted). " +
				"To do: 1. unmount it everywhere, then check it; 2. restart the pod",
		},
		{
			found(unjudged(both)),
			"not judged: target /q is empty and nothing shows that it is wanted: no answer; target /r is empty and so is that. Nothing was changed. " +
				"Of the rest, target /p (ext4, rw) and the staging mount point (ext4, rw) answered. " +
				"To do: if its pod should have the volume there, name that path (healerctl heal --path)",
		},
	} {
		if _, got := message(tc.report); got != tc.want {
			t.Errorf("got  %s\nwant %s", got, tc.want)
		}
	}
}

// A messageCase is a report, and the parts of its message, in their order, that a reader acts upon.
type messageCase struct {
	report healer.Report
	says   []string
	not    []string
}

func runMessages(t *testing.T, verdict healer.Verdict, cases map[string]messageCase) {
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			abnormal, got := message(tc.report)
			rest, ok := strings.CutPrefix(got, string(verdict)+": ")
			if !ok || abnormal != (verdict == healer.Abnormal || verdict == healer.NotJudged) {
				t.Errorf("abnormal is %v, want %s: %s", abnormal, verdict, got)
			}
			for _, part := range tc.says {
				if _, rest, ok = strings.Cut(rest, part); !ok {
					t.Errorf("%q is missing, or comes too early in %s", part, got)
				}
			}
			for _, part := range tc.not {
				if strings.Contains(got, part) {
					t.Errorf("%q is said in %s", part, got)
				}
			}
		})
	}
}

func TestMessageOfHealthy(t *testing.T) {
	raw := healer.MountPoint{Role: healer.RoleTarget, Path: "/b", Named: true, Inspect: facts.PathInfo{Kind: facts.KindBlock}}
	raw.Inspect.Rdev = testDev
	block := answering(1234*time.Millisecond, raw)
	sb := block.Superblocks[testDev]
	sb.Device = &facts.BlockDevice{Name: "loop1"}
	block.Superblocks[testDev] = sb
	runMessages(t, healer.Healthy, map[string]messageCase{
		"read-only": {
			report: found(answering(42*time.Microsecond+300, publishedAt("/p", facts.AttrReadOnly))),
			says:   []string{"target /p (ext4, ro) answered"},
		},
		"a block volume": {report: found(block), says: []string{"target /b (block device loop1) answered"}},
		"not asked": {
			report: found(healer.Case{MountPoints: []healer.MountPoint{published}}),
			says:   []string{"target /p (ext4, rw) checked, storage not probed"},
		},
		"nothing staged": {
			report: found(answering(3*time.Millisecond, gone, published)),
			says:   []string{"target /p (ext4, rw) answered"}, not: []string{"staging"},
		},
		"nothing else than an empty staging path": {
			report: found(healer.Case{MountPoints: []healer.MountPoint{gone}}),
			says:   []string{"nothing is mounted at staging /s, and no record shows that anything was"},
		},
		"no mount points": {says: []string{"nothing is wrong with the volume"}},
		"odd paths are quoted": {
			report: found(healer.Case{MountPoints: []healer.MountPoint{{Role: healer.RoleTarget, Path: "/a b\n"}}}),
			says:   []string{`target "/a b\n" checked`},
		},
	})
}

// healedElsewhere are heals of which the mount points say more than one target.
func healedElsewhere() map[string]messageCase {
	replaced := publishedAt("/0", 0)
	replaced.Stack[0].Dev.Minor++
	proven := stagedAt("/s")
	proven.Proven = true
	return map[string]messageCase{
		"a target that is no more, where another one stays": {
			report: healer.Report{
				Before: sick(
					answering(time.Millisecond, published, publishedAt("/gone", 0)),
					notMounted, healer.Condition{Status: healer.Inaccessible, Reason: healer.NotMounted, MountPoint: "/gone"},
				),
				After: healer.Diagnosis{Case: answering(3*time.Millisecond, published)},
				Steps: []healer.Outcome{{Step: "s", MountPoint: "/p"}},
			},
			says: []string{"target /gone: NotMounted; target /p: NotMounted (", "Done: s of target /p", "Now target /p (ext4, rw) answered"},
		},
		"in a container, which is no mount point any more": {
			report: healer.Report{
				Before: sick(answering(time.Millisecond, published, containerAt(7, "uid-a")), healer.Condition{
					Reason: healer.StaleInContainers, MountPoint: "/proc/7/root/data", Message: "ENOTCONN",
				}),
				After: healer.Diagnosis{Case: answering(3*time.Millisecond, published)},
				Steps: []healer.Outcome{{Step: "replace-in-container", MountPoint: "/proc/7/root/data"}},
			},
			says: []string{
				`pod uid-a container 0123456789ab at "/data": StaleInContainers (ENOTCONN)`,
				"Done: replace-in-container of the container mount point", "Now the target (ext4, rw) answered",
			},
		},
		"another filesystem instance": {
			report: healer.Report{
				Before: sick(answering(3*time.Millisecond, replaced, proven), healer.Condition{Reason: healer.Disconnected, MountPoint: "/0"}),
				After:  healer.Diagnosis{Case: answering(3*time.Millisecond, publishedAt("/0", 0), proven)}, Steps: stepsAt(1),
			},
			says: []string{"target /0: Disconnected", "Now the target", "Files opened before stay dead until they are opened anew or the pod restarts"},
		},
	}
}

func TestMessageOfHealed(t *testing.T) {
	runMessages(t, healer.Healed, map[string]messageCase{
		"many steps": {report: healedBy(stepsAt(20)...), says: []string{"Done: s of /0, /1, /2 and 17 more mount points…. Now "}},
		"steps at a mount point that came and went": {
			report: healedBy(healer.Outcome{Step: "s", MountPoint: "/p"}, healer.Outcome{Step: "s", MountPoint: "/gone"}),
			says:   []string{"Done: s of the target and /gone. Now "},
		},
		"a step that leaves something different": {
			report: healedBy(healer.Outcome{Step: "s", MountPoint: "/0", Note: "it shares no events now"}),
			says:   []string{"Done: s of /0 (it shares no events now). Now "},
		},
		"steps with different outcomes": {
			report: healedBy(
				healer.Outcome{Step: "s", MountPoint: "/a", Err: errors.New("no")},
				healer.Outcome{Step: "s", MountPoint: "/b"},
				healer.Outcome{Step: "t", MountPoint: "/b"},
				healer.Outcome{Step: "s", MountPoint: "/c"},
				healer.Outcome{Step: "s", MountPoint: "/d", Err: errors.New("no")},
				healer.Outcome{Step: "s", MountPoint: "/e", Err: errors.New("never")},
			),
			says: []string{"Done: s of /a and /d failed (no); s of /b and /c; t of /b; s of /e failed (never). Now "},
		},
	})
	runMessages(t, healer.Healed, healedElsewhere())
}

// onlyChecked is a report of a check that knows three steps, one of which it would refuse.
func onlyChecked() healer.Report {
	heals := []healer.Reason{healer.NotMounted}
	d := sick(both, notMounted)
	d.Steps = []healer.Step{
		{Name: "restage", MountPoint: published, Cost: healer.Restage, Heals: heals},
		{Name: "replace", MountPoint: published, Cost: healer.Replace, Heals: heals},
		{Name: "rebind", MountPoint: published, Heals: heals, Refused: "the staged mount is gone"},
	}
	return healer.Report{
		Checked: true, Before: sick(both, notMounted), After: d,
		Refused: []healer.Refusal{{Step: "rebind", MountPoint: "/p", Why: "the staged mount is gone"}},
	}
}

func TestMessageOfAbnormal(t *testing.T) {
	heals := unhealed(sick(both, notMounted))
	heals.Checked, heals.HealFollows = true, true
	heals.Refused = []healer.Refusal{{Step: "rebind", MountPoint: "/p", Why: "the call only checks"}}
	held := func(h healer.Held) healer.Report {
		r := unhealed(sick(both, shutdown))
		r.Held = h
		return r
	}
	runMessages(t, healer.Abnormal, map[string]messageCase{
		"a check before a heal": {
			report: heals,
			says:   []string{"target /p: NotMounted (", "A heal follows"}, not: []string{"Refused", "Nothing was changed", "To do"},
		},
		"after a failed step": {
			report: unhealed(sick(both, notMounted), healer.Outcome{
				Step: "rebind", MountPoint: "/p", Err: errors.New("move_mount: operation\nnot permitted"),
			}),
			says: []string{
				"target /p: NotMounted (", `Done: rebind of the target failed (move_mount: operation\nnot permitted). `,
				"Afterwards the same. To do: restart the pod",
			},
		},
		"in another way": {
			report: healer.Report{Before: sick(both, notMounted), After: sick(both, shutdown), Steps: []healer.Outcome{rebound}},
			says: []string{
				"target /p: NotMounted (", "Done: rebind of the target. Afterwards staging /s: FilesystemShutdown (super option shutdown)",
				"To do: unmount it everywhere",
			},
		},
		"only checked": {
			report: onlyChecked(),
			says: []string{
				"target /p: NotMounted (", "Nothing was changed. The call only checks; would try: replace of the target; restage of the target. ",
				"Refused: rebind of the target (the staged mount is gone)", "To do: restart the pod",
			},
		},
		"a provider failed": {report: unhealed(noMonitor), says: []string{"provider ceph: ProviderFailed (no monitor). Nothing was changed"}},
		"where it is mounted": {
			report: held(healer.Held{Mounts: 4, By: []string{"pod a container b", "pod c"}}),
			says:   []string{"staging /s: FilesystemShutdown (", "Held by 4 mounts, also in pod a container b; pod c. To do: unmount"},
		},
		"mounted elsewhere, perhaps": {report: held(healer.Held{Mounts: 1, More: true}), says: []string{"Held by at least 1 mount. To do: unmount"}},
		"mounted on the host only":   {report: held(healer.Held{Mounts: 1}), says: []string{"Held by 1 mount. To do: unmount"}},
	})
}

func TestMessageOfWhatIsNotJudged(t *testing.T) {
	alone := healer.Case{Unjudged: unjudged(both).Unjudged[1:]}
	runMessages(t, healer.NotJudged, map[string]messageCase{
		"and nothing else": {
			report: found(alone),
			says:   []string{"target /r is empty and so is that. Nothing was changed. To do: if its pod should have the volume there"},
		},
	})
	empty := "target /q is empty and nothing shows that it is wanted: no answer; target /r is empty and so is that. "
	runMessages(t, healer.Abnormal, map[string]messageCase{
		"beside what is wrong": {
			report: unhealed(sick(unjudged(both), notMounted)),
			says:   []string{"target /p: NotMounted (", empty + "Nothing was changed. To do: restart the pod"},
		},
		"beside what is wrong in another way": {
			report: healer.Report{Before: sick(unjudged(both), notMounted), After: sick(unjudged(both), shutdown), Steps: []healer.Outcome{rebound}},
			says: []string{
				"target /p: NotMounted (", empty + "Done: rebind of target /p. ",
				"Afterwards staging /s: FilesystemShutdown (super option shutdown); target /q: Unjudged; target /r: Unjudged. ",
				"To do: unmount it everywhere",
			},
		},
	})
}

// What others read later says the same of the same, however long it took.
func TestNoticeHasNoTimes(t *testing.T) {
	mountPoint := publishedAt("/p", 0)
	lost := healer.Diagnosis{Case: healer.Case{MountPoints: []healer.MountPoint{mountPoint}}, Conditions: []healer.Condition{{Reason: healer.NotMounted, MountPoint: "/p"}}}
	for name, tc := range map[string]struct {
		report func(took time.Duration) healer.Report
		want   string
	}{
		"healthy": {
			func(took time.Duration) healer.Report {
				return healer.Report{After: healer.Diagnosis{Case: answering(took, mountPoint)}}
			},
			"healthy: target /p (ext4, rw) answered",
		},
		"healed": {
			func(took time.Duration) healer.Report {
				return healer.Report{
					Before: lost, After: healer.Diagnosis{Case: answering(took, mountPoint)},
					Steps: []healer.Outcome{{Step: "rebind", MountPoint: "/p"}},
				}
			},
			"healed: target /p: NotMounted. Done: rebind of the target. Now the target (ext4, rw) answered",
		},
		"failed": {
			func(_ time.Duration) healer.Report {
				return healer.Report{Before: lost, After: lost, Steps: []healer.Outcome{{Step: "rebind", MountPoint: "/p", Err: errors.New("no")}}}
			},
			"abnormal: target /p: NotMounted. Done: rebind of the target failed (no). Afterwards the same",
		},
	} {
		for _, took := range []time.Duration{57 * time.Microsecond, 3 * time.Second} {
			if got := notice(tc.report(took)); got != tc.want {
				t.Errorf("%s: got  %s\nwant %s", name, got, tc.want)
			}
		}
	}
}

// kubeletPath is as long as they are in real life.
func kubeletPath(n int) string {
	return fmt.Sprintf("/var/lib/kubelet/pods/8f0b2a1c-6c1f-4c0e-9d0a-%012d/volumes/kubernetes.io~csi/pvc-3a5e9a4e-3f7b-4f0e-8b1d-2b8b7e6f5a4c/mount", n)
}

// An event keeps all reasons, an answer to a call the first one, and counts the rest where
// there is no room for them.
func TestLongMessageKeepsReasons(t *testing.T) {
	kinds := []healer.Reason{
		healer.NotMounted, healer.StagingNotMounted, healer.WrongVolumeMounted, healer.StackedMounts,
		healer.Disconnected, healer.StaleFileHandle, healer.IOError, healer.FilesystemShutdown,
		healer.ReadOnlyFilesystem, healer.NotResponding, healer.DeviceMissing, healer.NotABlockDevice,
		healer.StaleInContainers,
	}
	for _, n := range []int{1, 3, 12, 500} {
		var r healer.Report
		for i := range n {
			p := publishedAt(kubeletPath(i), 0)
			p.Named = i == 0
			r.Before.Case.MountPoints = append(r.Before.Case.MountPoints, p)
			r.Before.Conditions = append(r.Before.Conditions, healer.Condition{
				Status: healer.Inaccessible, Reason: kinds[i%len(kinds)], MountPoint: p.Path,
				Message: strings.Repeat("évidence ", 60), Advice: strings.Repeat("advice ", 50),
			})
			r.Refused = append(r.Refused, healer.Refusal{Step: "rebind", MountPoint: p.Path, Why: strings.Repeat("because ", 50)})
		}
		r.After = r.Before
		has := func(got string, want ...string) {
			for _, part := range append(want, "Refused: rebind of", "To do: ", printable.Ellipsis) {
				if !strings.Contains(got, part) {
					t.Errorf("%d mount points: %q is missing in %s", n, part, got)
				}
			}
			t.Logf("%d mount points, %d bytes: %s", n, len(got), got)
		}
		_, got := message(r)
		checkMessage(t, got)
		all := []string{"Nothing was changed"}
		for _, k := range kinds[:min(n, len(kinds))] {
			all = append(all, string(k))
		}
		has(notice(r), all...)
		switch {
		case n > 3:
			has(got, string(kinds[0]), fmt.Sprintf("%d more findings", n-1))
		default:
			has(got, all...)
		}
	}
}

// However many containers there are, the host's mount point, every reason and every step
// are named.
func TestMessageOfManyContainers(t *testing.T) {
	const n = 200
	for name, change := range map[string]func(*healer.Report){
		"healed":              func(r *healer.Report) { r.After.Conditions = nil },
		"none of them healed": func(r *healer.Report) { r.After = r.Before },
		"each failed in its own way": func(r *healer.Report) {
			r.After = r.Before
			for i := range r.Steps[1:] {
				r.Steps[1+i].Err = fmt.Errorf("process %d has ended", i)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			host := publishedAt(kubeletPath(1), 0)
			r := healer.Report{Before: sick(answering(time.Millisecond, host), healer.Condition{
				Status: healer.Inaccessible, Reason: healer.Disconnected, MountPoint: host.Path, Message: "statx: ENOTCONN", Advice: "delete the pod",
			})}
			r.Steps = []healer.Outcome{{Step: "replace", MountPoint: host.Path}}
			for i := range n {
				p := containerAt(1000+i, fmt.Sprintf("8f0b2a1c-6c1f-4c0e-9d0a-%012d", i))
				r.Before.Case.MountPoints = append(r.Before.Case.MountPoints, p)
				r.Before.Conditions = append(r.Before.Conditions, healer.Condition{
					Status: healer.Inaccessible, Reason: healer.StaleInContainers, MountPoint: p.Path,
					Message: "it still has the filesystem instance that ended", Advice: "delete the pod",
				})
				r.Steps = append(r.Steps, healer.Outcome{Step: "replace-in-container", MountPoint: p.Path})
			}
			r.After.Case = answering(time.Millisecond, host)
			change(&r)
			_, got := message(r)
			checkMessage(t, got)
			for _, want := range []string{"target /var/lib", string(healer.Disconnected), string(healer.StaleInContainers), "replace of", "replace-in-container"} {
				if !strings.Contains(got, want) {
					t.Errorf("%q is missing in %s", want, got)
				}
			}
		})
	}
}

// TestMessageSaysThatAStepFailed, however many others helped before it.
func TestMessageSaysThatAStepFailed(t *testing.T) {
	for name, tc := range map[string]struct {
		path  string
		notes bool
	}{
		"alike":                {"/data", false},
		"each in its own way":  {"/data", true},
		"with names too long":  {"/" + strings.Repeat("long-", 40), false},
		"too long, and unlike": {"/" + strings.Repeat("long-", 40), true},
	} {
		t.Run(name, func(t *testing.T) {
			host := publishedAt(kubeletPath(1), 0)
			r := healer.Report{
				Before: sick(answering(time.Millisecond, host), healer.Condition{
					Status: healer.Inaccessible, Reason: healer.Disconnected, MountPoint: host.Path, Message: strings.Repeat("statx: ENOTCONN ", 9), Advice: "delete the pod",
				}),
				Refused: []healer.Refusal{{Step: "restage", MountPoint: host.Path, Why: strings.Repeat("because ", 50)}},
			}
			add := func(step string, i int, err error) {
				p := containerAt(1000+i, fmt.Sprintf("8f0b2a1c-6c1f-4c0e-9d0a-%012d", i))
				p.InContainer.Mount.Path = tc.path
				p.Path = p.InContainer.Path()
				r.Before.Case.MountPoints = append(r.Before.Case.MountPoints, p)
				done := healer.Outcome{Step: step, MountPoint: p.Path, Err: err}
				if tc.notes {
					done.Note = fmt.Sprint("note ", i)
				}
				r.Steps = append(r.Steps, done)
			}
			for i := range 40 {
				add(fmt.Sprint("replace-in-container-", i%20), i, nil)
			}
			add("replace-in-container", 41, errors.New("it has ended"))
			r.After = sick(answering(time.Millisecond, host), healer.Condition{
				Status: healer.Inaccessible, Reason: healer.StaleInContainers, MountPoint: r.Steps[40].MountPoint, Message: "ENOTCONN", Advice: "delete the pod",
			})
			for face, got := range map[string]string{"message": line(message(r)), "event": notice(r), "trailer": inFull(r)} {
				if !strings.Contains(got, "failed") {
					t.Errorf("%s: %s", face, got)
				}
			}
			outcomes := adminReport(r, false).GetOutcomes()
			if !slices.ContainsFunc(outcomes, func(o *adminpb.Outcome) bool { return o.GetError() == "it has ended" }) {
				t.Errorf("healerctl lists %d outcomes without the one that failed", len(outcomes))
			}
		})
	}
}

func line(_ bool, text string) string { return text }

func TestMessageDoesNotDependOnProvidersOrder(t *testing.T) {
	var conditions []healer.Condition
	for i := range 20 {
		conditions = append(conditions, healer.Condition{Reason: healer.Reason(fmt.Sprint("R", i%3)), MountPoint: fmt.Sprint("/p", i%7), Message: fmt.Sprint(i)})
	}
	_, want := message(healer.Report{After: healer.Diagnosis{Conditions: conditions}})
	for i := range conditions {
		turned := append(append([]healer.Condition(nil), conditions[i:]...), conditions[:i]...)
		if _, got := message(healer.Report{After: healer.Diagnosis{Conditions: turned}}); got != want {
			t.Fatalf("turned by %d:\n%s\n%s", i, got, want)
		}
	}
}

func checkMessage(t *testing.T, got string) {
	t.Helper()
	word, _, ok := strings.Cut(got, ": ")
	if !ok || word != "healthy" && word != "healed" && word != "abnormal" && word != "not judged" {
		t.Errorf("starts with no verdict: %q", got)
	}
	if len(got) >= 400 || !utf8.ValidString(got) {
		t.Errorf("%d bytes, valid UTF-8: %v: %q", len(got), utf8.ValidString(got), got)
	}
	for _, r := range got {
		if !unicode.IsPrint(r) {
			t.Errorf("holds %U: %q", r, got)
		}
	}
}

func FuzzMessage(f *testing.F) {
	f.Add("/p", "/s", "NotMounted", "evidence", "why\nnot", uint8(1), uint8(0b111))
	f.Add("\xff\xfe", "", "\u202e", "…", "\x00", uint8(40), uint8(0b101))
	f.Add(strings.Repeat("/ä", 2000), "/", "", strings.Repeat("\u2028", 900), strings.Repeat("\U0001F600", 600), uint8(200), uint8(0xff))
	f.Fuzz(func(t *testing.T, a, b, reason, evidence, why string, n, bits uint8) {
		var d healer.Diagnosis
		for i := range n {
			mountPoint := publishedAt(a+fmt.Sprint(i), facts.Attr(i))
			mountPoint.Stack[0].FSType = b
			d.Case.MountPoints = append(d.Case.MountPoints, mountPoint, stagedAt(b))
			d.Conditions = append(d.Conditions, healer.Condition{Reason: healer.Reason(reason), MountPoint: mountPoint.Path, Message: evidence, Advice: why})
		}
		if bits&16 != 0 {
			d.Conditions, d.Case.Unjudged = nil, []healer.Unjudged{{MountPoint: healer.MountPoint{Path: a, PodUID: b}, Why: why}}
		}
		if bits&8 != 0 {
			d.Failures = []healer.ProviderFailure{{Provider: a, Err: errors.New(evidence)}, {}}
		}
		var r healer.Report
		if bits&1 != 0 {
			r.Before = d
		}
		if bits&2 != 0 {
			r.After = d
		}
		if bits&4 != 0 {
			r.Steps = []healer.Outcome{{Step: reason, MountPoint: a}, {Step: b, MountPoint: b, Err: errors.New(why)}}
			r.Refused = []healer.Refusal{{Step: a, MountPoint: evidence, Why: why}}
		}
		abnormal, got := message(r)
		checkMessage(t, got)
		if abnormal != (r.Verdict() == healer.Abnormal || r.Verdict() == healer.NotJudged) || !strings.HasPrefix(got, string(r.Verdict())+": ") {
			t.Errorf("verdict %s, abnormal %v: %q", r.Verdict(), abnormal, got)
		}
	})
}

func TestPathText(t *testing.T) {
	for _, tc := range []struct {
		in    string
		limit int
		want  string
	}{
		{"/a/b", 4, "/a/b"},
		{"/a b", 9, `"/a b"`},
		{"/a;b", 9, `"/a;b"`},
		{"/a\xff", 9, `"/a\xff"`},
		{"/0123456789", 11, "/0123456789"},
		{"/0123456789", 10, "/01…789"},
		{"/ääääääääääää", 12, "/ä…ää"},
		{"/abcdef", 3, "…"},
	} {
		if got := pathText(tc.in, tc.limit); got != tc.want {
			t.Errorf("pathText(%q, %d) = %q, want %q", tc.in, tc.limit, got, tc.want)
		}
	}
}

func TestQuoted(t *testing.T) {
	for in, want := range map[string]string{
		"a\nb":                         `"a\nb"`,
		strings.Repeat("a", 128):       `"` + strings.Repeat("a", 128) + `"`,
		strings.Repeat("a", 129):       `"` + strings.Repeat("a", 128) + `"…`,
		"a" + strings.Repeat("é", 100): `"a` + strings.Repeat("é", 63) + `"…`,
	} {
		if got := quoted(in); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
}
