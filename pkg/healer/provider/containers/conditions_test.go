package containers

import (
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/csi-addons/node-healer/pkg/facts"
	"github.com/csi-addons/node-healer/pkg/healer"
	"github.com/csi-addons/node-healer/pkg/healer/providertest"
	"github.com/csi-addons/node-healer/test/harness/cases"
)

// example is a case and what is found in it: the reason at its mount point, what the
// message names, and a "!" for acute.
type example struct {
	name  string
	build func() healer.Case
	want  []string
}

var examples = []example{
	{
		name:  "dead in a container",
		build: cases.With(healedOnHost),
		want:  []string{"StaleInContainers! container: still has the filesystem instance that ended: statx: transport endpoint is not connected (ENOTCONN)"},
	},
	{
		name:  "shut down in a container",
		build: cases.With(healedOnHost, inContainer(func(in *healer.InContainer) { in.Probe.Errno = 0 })),
		want:  []string{"StaleInContainers! container: shut itself down"},
	},
	{
		name: "silent in a container",
		build: cases.With(healedOnHost, inContainer(func(in *healer.InContainer) {
			in.Probe = facts.ContainerProbe{TimedOut: true, Err: "no answer within 5s"}
		})),
		want: []string{"StaleInContainers! container: does not answer"},
	},
	{
		name:  "a container that cannot be asked",
		build: cases.With(healedOnHost, inContainer(func(in *healer.InContainer) { in.Probe = facts.ContainerProbe{Err: "no way in"} })),
		want:  []string{"StaleInContainers! container: cannot be probed: no way in"},
	},
	{
		name:  "a container to which access is denied",
		build: cases.With(healedOnHost, inContainer(func(in *healer.InContainer) { in.Probe.Errno = syscall.EACCES })),
		want:  []string{"StaleInContainers! container: no longer the volume's and answers EACCES"},
	},
	{
		name:  "interrupted in a container",
		build: cases.With(healedOnHost, inContainer(unfinishedAlone)),
		want:  []string{"StaleInContainers! container: an interrupted replacement left it unfinished"},
	},
	{
		name:  "interrupted in a container, before the dead one was off",
		build: cases.With(healedOnHost, inContainer(unfinishedBelow)),
		want:  []string{"StaleInContainers! container: ENOTCONN"},
	},
	{
		name:  "interrupted in a container, and dead since",
		build: cases.With(healedOnHost, inContainer(func(in *healer.InContainer) { unfinishedAlone(in); in.Probe.Errno = syscall.ENOTCONN })),
		want:  []string{"StaleInContainers! container: ENOTCONN"},
	},
	{
		name:  "a container that cannot be inspected",
		build: cases.With(notInspected("a", "b")),
		want:  []string{"ContainerUnverified target: pod a container b was there before the filesystem instance was replaced, and cannot be inspected: why"},
	},
	{
		name:  "one of a pod without a mount point",
		build: cases.With(notInspected("c", "")),
		want:  []string{"ContainerUnverified target: pod c was there before"},
	},
	{
		name:  "any container",
		build: cases.With(notInspected("", "")),
		want:  []string{"ContainerUnverified target: a container was there before"},
	},
	{
		name:  "not proven in a container",
		build: cases.With(healedOnHost, inContainer(func(in *healer.InContainer) { in.Proof, in.Unproven = "", "it is unknown" })),
		want:  []string{"StaleInContainers! container: ENOTCONN"},
	},
	{
		name:  "started on the bare directory",
		build: cases.With(startedWith(0, func(c *healer.Case) *[]healer.StartedWith { return &c.OnBare })),
		want:  []string{"ContainerOnBareDirectory target: pod a container c at \"/data\", pod a container d at \"/data\" were started while nothing was mounted"},
	},
	{
		name:  "started with a placeholder",
		build: cases.With(startedWith(cases.Placeholder, func(c *healer.Case) *[]healer.StartedWith { return &c.OnPlaceholder })),
		want:  []string{"ContainerKeptPlaceholder target: in the middle of a step"},
	},
	{
		name: "started with another device number",
		build: cases.With(func(c *healer.Case) {
			c.OnOldDevice = []healer.StartedBefore{{
				MountPoint: cases.Published,
				Container:  facts.Container{Workload: facts.Workload{PodUID: "a", ContainerID: "c"}, Started: time.Second},
				Was:        cases.Disk,
				Now:        facts.Dev{Major: 8, Minor: 32},
			}}
		}),
		want: []string{"ContainerOnOldDevice target: pod a container c started when the volume was device 8:16, which may be another disk by now: the volume is 8:32"},
	},
}

// startedWith has two containers with the same instead of the volume.
func startedWith(a facts.Attr, list func(*healer.Case) *[]healer.StartedWith) cases.Change {
	return func(c *healer.Case) {
		for _, id := range []string{"c", "d"} {
			*list(c) = append(*list(c), healer.StartedWith{MountPoint: cases.Published, ContainerMount: facts.ContainerMount{
				Container: facts.Container{Workload: facts.Workload{PodUID: "a", ContainerID: id}}, Mount: facts.Mount{Path: "/data", Attr: a},
			}})
		}
	}
}

func notInspected(podUID, container string) cases.Change {
	return func(c *healer.Case) {
		c.Unverified = append(c.Unverified, facts.Unverified{Workload: facts.Workload{PodUID: podUID, ContainerID: container}, Detail: "why"})
	}
}

func TestConditions(t *testing.T) {
	for _, tc := range examples {
		t.Run(tc.name, func(t *testing.T) { expectConditions(t, tc.build(), tc.want) })
	}
}

// What a container wrote to the bare directory is lost with its pod; one that cannot be inspected may
// have that directory.
func TestAdviceOnBareDirectorySavesTheFilesFirst(t *testing.T) {
	for name, change := range map[string]cases.Change{
		"has it": startedWith(0, func(c *healer.Case) *[]healer.StartedWith { return &c.OnBare }),
		"may have it": func(c *healer.Case) {
			c.UnverifiedStart = []facts.Unverified{{Workload: facts.Workload{PodUID: "a", ContainerID: "c"}, Why: facts.WhySandbox}}
		},
	} {
		advice := examine(t, &kernel{}, FUSE, cases.With(change)()).Conditions[0].Advice
		saves, deletes := strings.Index(advice, "kubectl cp"), strings.Index(advice, "delete the pod")
		if saves < 0 || deletes < saves {
			t.Errorf("%s: the advice is %q", name, advice)
		}
	}
}

func TestHealthy(t *testing.T) {
	for name, build := range map[string]func() healer.Case{
		"as recorded":           cases.Healthy,
		"never seen":            cases.With(cases.Unrecorded),
		"what is lost on host":  cases.With(cases.Lost, cases.StagingLost),
		"the host's is sick":    cases.With(cases.Outliving),
		"nothing to be said of": cases.With(func(c *healer.Case) { c.Lingering = []healer.InContainer{{}} }),
	} {
		t.Run(name, func(t *testing.T) { expectConditions(t, build(), nil) })
	}
}

// expectConditions expects "Reason! role: part of the message" of the provider.
func expectConditions(t *testing.T, c healer.Case, want []string) {
	t.Helper()
	cases.WantConditions(t, c, examine(t, &kernel{}, FUSE, c).Conditions, want)
}

func TestConformance(t *testing.T) {
	k := &kernel{}
	suite := providertest.Cases{Healthy: cases.Healthy, Sick: map[string]func() healer.Case{}, Acts: func() int { return len(k.plans) }}
	for _, tc := range examples {
		suite.Sick[tc.name] = tc.build
	}
	providertest.Run(t, New(k, FUSE), suite)
}
