package nodeserver

import (
	"encoding/json"
	"fmt"
	"strings"
	"syscall"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"github.com/csi-addons/node-healer/pkg/api/healerpb"
	"github.com/csi-addons/node-healer/pkg/facts"
	"github.com/csi-addons/node-healer/pkg/healer"
)

// TestCures: what a new stage or a new pod ends, and what nothing is known to end.
func TestCures(t *testing.T) {
	const contained = "/proc/77/root/data"
	inContainer := healer.MountPoint{Role: healer.RoleContainer, Path: contained, PodUID: "a", InContainer: &healer.InContainer{}}
	silent := inContainer
	silent.InContainer = &healer.InContainer{Probe: facts.ContainerProbe{TimedOut: true}}
	of := func(fsType string, errno syscall.Errno) healer.Case {
		return healer.Case{MountPoints: []healer.MountPoint{inContainer}, Superblocks: map[facts.Dev]facts.Superblock{
			testDev: {FSType: fsType, Answer: facts.Answer{Asked: true, Errno: errno}},
		}}
	}
	whole := func(reason healer.Reason) healer.Condition {
		return healer.Condition{Reason: reason, Superblock: testDev}
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
		for _, c := range cures(tc.d) {
			text := c.Reason
			if c.NewStage {
				text += " stage"
			}
			if c.NewPod != "" {
				text += " " + c.NewPod
			}
			got = append(got, text)
		}
		if strings.Join(got, ", ") != tc.want {
			t.Errorf("%s: got %q, want %q", name, got, tc.want)
		}
	}
}

// TestCuresAreToldBesideTheAnswer that a volume is abnormal.
func TestCuresAreToldBesideTheAnswer(t *testing.T) {
	h := &fakeHealer{}
	s := serve(t, testConfig(h))
	ask := func() []string {
		t.Helper()
		var trailer metadata.MD
		if _, err := s.node().NodeGetVolumeHealth(testContext(t), healthOf("v", pathA, ""), grpc.Trailer(&trailer)); err != nil {
			t.Fatal(err)
		}
		return trailer.Get(healerpb.TrailerConditions)
	}
	if told := ask(); len(told) > 0 {
		t.Errorf("of a healthy volume: %q", told)
	}
	h.next(healer.Report{After: healer.Diagnosis{
		Case:       healer.Case{Superblocks: map[facts.Dev]facts.Superblock{testDev: {FSType: "ext4"}}},
		Conditions: []healer.Condition{{Reason: healer.FilesystemShutdown, Superblock: testDev}},
	}}, nil, nil)
	var got []healerpb.Condition
	if told := ask(); len(told) != 1 || json.Unmarshal([]byte(told[0]), &got) != nil || len(got) != 1 || !got[0].NewStage {
		t.Errorf("got %q", told)
	}
	// As many pods as no trailer has room for.
	many := healer.Diagnosis{Conditions: []healer.Condition{{Reason: healer.ContainerUnverified}}}
	for i := range 200 {
		many.Case.Unverified = append(many.Case.Unverified, facts.Unverified{Workload: facts.Workload{PodUID: fmt.Sprintf("0e9d7d9d-6d1c-4d5a-8d3f-%012d", i)}, Why: facts.WhySandbox})
	}
	h.next(healer.Report{After: many}, nil, nil)
	if told := ask(); len(told) > 0 {
		t.Errorf("told %d bytes", len(told[0]))
	}
}
