package nodeserver

import (
	"encoding/json"
	"fmt"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"github.com/csi-addons/node-healer/pkg/api/healerpb"
	"github.com/csi-addons/node-healer/pkg/facts"
	"github.com/csi-addons/node-healer/pkg/healer"
)

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
		Case: healer.Case{
			MountPoints: []healer.MountPoint{{Path: pathA, Stack: []facts.Mount{{Dev: testDev, Root: "/", Path: pathA}}}},
			Superblocks: map[facts.Dev]healer.Superblock{testDev: {FSType: "ext4"}},
		},
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
