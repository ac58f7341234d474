// Package integration breaks real volumes on a real kernel, asks a real
// node-healer to heal them through a real gRPC client, and looks at what is
// left.
package integration

import (
	"testing"

	"github.com/csi-addons/node-healer/test/harness"
	"github.com/csi-addons/node-healer/test/harness/cluster"
)

func TestMain(m *testing.M) { harness.Main(m, harness.Faults, cluster.Stop) }
