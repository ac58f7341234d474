package containers

import (
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/csi-addons/node-healer/pkg/facts"
	"github.com/csi-addons/node-healer/pkg/healer"
	"github.com/csi-addons/node-healer/pkg/healer/providertest"
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
		build: with(healedOnHost),
		want:  []string{"StaleInContainers! container: still has the filesystem instance that ended: statx: transport endpoint is not connected (ENOTCONN)"},
	},
	{
		name:  "shut down in a container",
		build: with(healedOnHost, inContainer(func(in *healer.InContainer) { in.Probe.Errno = 0 })),
		want:  []string{"StaleInContainers! container: shut itself down"},
	},
	{
		name: "silent in a container",
		build: with(healedOnHost, inContainer(func(in *healer.InContainer) {
			in.Probe = facts.ContainerProbe{TimedOut: true, Err: "no answer within 5s"}
		})),
		want: []string{"StaleInContainers! container: does not answer"},
	},
	{
		name:  "a container that cannot be asked",
		build: with(healedOnHost, inContainer(func(in *healer.InContainer) { in.Probe = facts.ContainerProbe{Err: "no way in"} })),
		want:  []string{"StaleInContainers! container: cannot be probed: no way in"},
	},
	{
		name:  "interrupted in a container",
		build: with(healedOnHost, inContainer(unfinishedAlone)),
		want:  []string{"StaleInContainers! container: an interrupted replacement left it unfinished"},
	},
	{
		name:  "interrupted in a container, before the dead one was off",
		build: with(healedOnHost, inContainer(unfinishedBelow)),
		want:  []string{"StaleInContainers! container: ENOTCONN"},
	},
	{
		name:  "interrupted in a container, and dead since",
		build: with(healedOnHost, inContainer(func(in *healer.InContainer) { unfinishedAlone(in); in.Probe.Errno = syscall.ENOTCONN })),
		want:  []string{"StaleInContainers! container: ENOTCONN"},
	},
	{
		name:  "a container that cannot be inspected",
		build: with(notInspected("a", "b")),
		want:  []string{"ContainerUnverified target: pod a container b was there before the filesystem instance was replaced, and cannot be inspected: why"},
	},
	{
		name:  "one of a pod without a mount point",
		build: with(notInspected("c", "")),
		want:  []string{"ContainerUnverified target: pod c was there before"},
	},
	{name: "any container", build: with(notInspected("", "")), want: []string{"ContainerUnverified target: a container was there before"}},
	{
		name:  "not proven in a container",
		build: with(healedOnHost, inContainer(func(in *healer.InContainer) { in.Proof, in.Unproven = "", "it is unknown" })),
		want:  []string{"StaleInContainers! container: ENOTCONN"},
	},
	{
		name:  "started on the bare directory",
		build: with(startedWith(0, func(c *healer.Case) *[]healer.StartedWith { return &c.OnBare })),
		want:  []string{"ContainerOnBareDirectory target: pod a container c at \"/data\", pod a container d at \"/data\" were started while nothing was mounted"},
	},
	{
		name:  "started with a placeholder",
		build: with(startedWith(placeholder, func(c *healer.Case) *[]healer.StartedWith { return &c.OnPlaceholder })),
		want:  []string{"ContainerKeptPlaceholder target: in the middle of a step"},
	},
	{
		name: "started with another device number",
		build: with(func(c *healer.Case) {
			c.OnOldDevice = []healer.StartedBefore{{
				MountPoint: published,
				Container:  facts.Container{Workload: facts.Workload{PodUID: "a", ContainerID: "c"}, Started: time.Second},
				Was:        disk,
				Now:        facts.Dev{Major: 8, Minor: 32},
			}}
		}),
		want: []string{"ContainerOnOldDevice target: pod a container c started when the volume was device 8:16, which may be another disk by now: the volume is 8:32"},
	},
}

// startedWith has two containers with the same instead of the volume.
func startedWith(a facts.Attr, list func(*healer.Case) *[]healer.StartedWith) func(*healer.Case) {
	return func(c *healer.Case) {
		for _, id := range []string{"c", "d"} {
			*list(c) = append(*list(c), healer.StartedWith{MountPoint: published, ContainerMount: facts.ContainerMount{
				Container: facts.Container{Workload: facts.Workload{PodUID: "a", ContainerID: id}}, Mount: facts.Mount{Path: "/data", Attr: a},
			}})
		}
	}
}

func notInspected(podUID, container string) func(*healer.Case) {
	return func(c *healer.Case) {
		c.Unverified = append(c.Unverified, facts.Unverified{Workload: facts.Workload{PodUID: podUID, ContainerID: container}, Detail: "why"})
	}
}

func TestConditions(t *testing.T) {
	for _, tc := range examples {
		t.Run(tc.name, func(t *testing.T) { expectConditions(t, tc.build(), tc.want) })
	}
}

// What a container wrote to the bare directory is lost with its pod.
func TestAdviceOnBareDirectorySavesTheFilesFirst(t *testing.T) {
	f := examine(t, &kernel{}, FUSE, with(startedWith(0, func(c *healer.Case) *[]healer.StartedWith { return &c.OnBare }))())
	advice := f.Conditions[0].Advice
	saves, deletes := strings.Index(advice, "kubectl cp"), strings.Index(advice, "delete the pod")
	if saves < 0 || deletes < saves {
		t.Errorf("the advice is %q", advice)
	}
}

func TestHealthy(t *testing.T) {
	for name, build := range map[string]func() healer.Case{
		"as recorded":           healthy,
		"never seen":            with(unrecorded),
		"what is lost on host":  with(lost, stagingLost),
		"the host's is sick":    with(outliving),
		"nothing to be said of": with(func(c *healer.Case) { c.Lingering = []healer.InContainer{{}} }),
	} {
		t.Run(name, func(t *testing.T) { expectConditions(t, build(), nil) })
	}
}

// expectConditions compares "Reason! mount point: part of the message" with what is found.
func expectConditions(t *testing.T, c healer.Case, want []string) {
	t.Helper()
	f := examine(t, &kernel{}, FUSE, c)
	names := map[string]string{published: "target", staged: "staging", contained: "container"}
	ok := len(f.Conditions) == len(want)
	for i, cond := range f.Conditions {
		head := string(cond.Reason)
		if cond.Acute {
			head += "!"
		}
		head += " " + names[cond.MountPoint]
		if i < len(want) {
			wantHead, part, _ := strings.Cut(want[i], ":")
			ok = ok && head == wantHead && strings.Contains(cond.Message, strings.TrimSpace(part))
		}
	}
	if !ok {
		t.Errorf("got %+v\nwant %q", f.Conditions, want)
	}
}

func TestConformance(t *testing.T) {
	k := &kernel{}
	cases := providertest.Cases{Healthy: healthy, Sick: map[string]func() healer.Case{}, Acts: func() int { return len(k.plans) }}
	for _, tc := range examples {
		cases.Sick[tc.name] = tc.build
	}
	providertest.Run(t, New(k, FUSE), cases)
}
