package healer_test

import (
	"strings"
	"syscall"
	"testing"

	"github.com/csi-addons/node-healer/pkg/facts"
	"github.com/csi-addons/node-healer/pkg/healer"
)

// TestCures: what a new stage or a new pod ends, and what nothing is known to end.
func TestCures(t *testing.T) {
	dev := facts.Dev{Major: 8}
	const contained = "/proc/77/root/data"
	inContainer := healer.MountPoint{Role: healer.RoleContainer, Path: contained, PodUID: "a", InContainer: &healer.InContainer{}}
	silent := inContainer
	silent.InContainer = &healer.InContainer{Probe: facts.ContainerProbe{TimedOut: true}}
	at := func(root string) healer.MountPoint {
		return healer.MountPoint{Role: healer.RoleStaging, Path: "/staged", Stack: []facts.Mount{{Dev: dev, Root: root, Path: "/staged"}}}
	}
	of := func(fsType string, errno syscall.Errno) healer.Case {
		return healer.Case{MountPoints: []healer.MountPoint{inContainer, at("/")}, Superblocks: map[facts.Dev]healer.Superblock{
			dev: {FSType: fsType, Answer: facts.Answer{Asked: true, Errno: errno}},
		}}
	}
	directory := of("xfs", 0)
	directory.MountPoints[1] = at("/volumes/a")
	whole := func(reason healer.Reason) healer.Condition {
		return healer.Condition{Reason: reason, Superblock: dev}
	}
	stale := healer.Condition{Reason: healer.StaleInContainers, MountPoint: contained, Acute: true}
	step := func(refused string) healer.Step {
		return healer.Step{MountPoint: inContainer, Heals: []healer.Reason{healer.StaleInContainers}, Refused: refused}
	}
	unverified := func(pod string, why facts.Why) facts.Unverified {
		return facts.Unverified{Workload: facts.Workload{PodUID: pod}, Why: why}
	}
	for name, tc := range map[string]struct {
		d    healer.Diagnosis
		want string
	}{
		"a shutdown":               {healer.Diagnosis{Case: of("ext4", 0), Conditions: []healer.Condition{whole(healer.FilesystemShutdown)}}, "FilesystemShutdown stage"},
		"read-only, with errors":   {healer.Diagnosis{Case: of("ext4", 0), Conditions: []healer.Condition{whole(healer.ReadOnlyFilesystem), whole(healer.FilesystemErrors)}}, "ReadOnlyFilesystem stage, FilesystemErrors stage"},
		"at two mount points":      {healer.Diagnosis{Case: of("ext4", 0), Conditions: []healer.Condition{whole(healer.FilesystemShutdown), whole(healer.FilesystemShutdown)}}, "FilesystemShutdown stage"},
		"an xfs answers EIO":       {healer.Diagnosis{Case: of("xfs", syscall.EIO), Conditions: []healer.Condition{whole(healer.IOError)}}, "IOError stage"},
		"an xfs, EREMOTEIO":        {healer.Diagnosis{Case: of("xfs", syscall.EREMOTEIO), Conditions: []healer.Condition{whole(healer.IOError)}}, "IOError"},
		"an ext4 answers EIO":      {healer.Diagnosis{Case: of("ext4", syscall.EIO), Conditions: []healer.Condition{whole(healer.IOError)}}, "IOError"},
		"a directory of one":       {healer.Diagnosis{Case: directory, Conditions: []healer.Condition{whole(healer.FilesystemShutdown)}}, "FilesystemShutdown"},
		"an overlay":               {healer.Diagnosis{Case: of("overlay", 0), Conditions: []healer.Condition{whole(healer.ReadOnlyFilesystem)}}, "ReadOnlyFilesystem"},
		"a read-only mount":        {healer.Diagnosis{Case: of("ext4", 0), Conditions: []healer.Condition{{Reason: healer.ReadOnlyFilesystem}}}, "ReadOnlyFilesystem"},
		"a superblock that went":   {healer.Diagnosis{Conditions: []healer.Condition{whole(healer.FilesystemShutdown)}}, "FilesystemShutdown"},
		"the device is gone":       {healer.Diagnosis{Case: of("ext4", 0), Conditions: []healer.Condition{whole(healer.DeviceMissing)}}, "DeviceMissing"},
		"stale in a container":     {healer.Diagnosis{Case: of("ext4", 0), Conditions: []healer.Condition{stale}, Steps: []healer.Step{step("no")}}, "StaleInContainers a"},
		"stale, and a step helps":  {healer.Diagnosis{Case: of("ext4", 0), Conditions: []healer.Condition{stale}, Steps: []healer.Step{step("")}}, "StaleInContainers"},
		"stale, without an answer": {healer.Diagnosis{Case: healer.Case{MountPoints: []healer.MountPoint{silent}}, Conditions: []healer.Condition{stale}}, "StaleInContainers"},
		"unverified": {healer.Diagnosis{
			Case:       healer.Case{Unverified: []facts.Unverified{unverified("a", facts.WhySandbox), unverified("b", facts.WhyForeign), unverified("c", facts.WhyNoAnswer)}},
			Conditions: []healer.Condition{{Reason: healer.ContainerUnverified}},
		}, "ContainerUnverified a, ContainerUnverified b, ContainerUnverified"},
		"unverified, and which is not known": {healer.Diagnosis{Case: healer.Case{Unverified: []facts.Unverified{unverified("", facts.WhyScanCut)}}}, "ContainerUnverified"},
		"it may have the bare directory":     {healer.Diagnosis{Case: healer.Case{UnverifiedStart: []facts.Unverified{unverified("a", facts.WhySandbox)}}}, "ContainerUnverified"},
		"another provider's":                 {healer.Diagnosis{Conditions: []healer.Condition{{Reason: healer.ContainerUnverified}}}, ""},
	} {
		var got []string
		for _, c := range tc.d.Cures() {
			got = append(got, inWords(c))
		}
		if strings.Join(got, ", ") != tc.want {
			t.Errorf("%s: got %q, want %q", name, got, tc.want)
		}
	}
}

// inWords is a reason, and what ends it.
func inWords(c healer.Cure) string {
	words := []string{string(c.Reason)}
	if c.NewStage {
		words = append(words, "stage")
	}
	if c.NewPod != "" {
		words = append(words, c.NewPod)
	}
	return strings.Join(words, " ")
}
