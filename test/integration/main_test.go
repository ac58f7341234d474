// Package integration breaks real volumes on a real kernel, asks a real
// node-healer to heal them through a real gRPC client, and looks at what is
// left.
package integration

import (
	"testing"

	"github.com/csi-addons/node-healer/test/harness"
	"github.com/csi-addons/node-healer/test/harness/cluster"
)

func TestMain(m *testing.M) { harness.MainInLanes(m, harness.Faults, alone, cluster.Stop) }

// alone are the tests that use numbers of the whole machine, which others take and give
// back: those of peer groups and of loop devices.
var alone = []string{
	"TestAttackWithPeerGroups",
	"TestAttackWithPeerGroupsOnData",
	"TestAttackWithPeerGroupsAllTheTime",
	"TestConditions", // removes a loop device
	"TestContainerOnOldDevice",
}
