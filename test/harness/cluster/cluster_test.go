package cluster_test

import (
	"testing"

	"github.com/csi-addons/node-healer/test/harness"
	"github.com/csi-addons/node-healer/test/harness/cluster"
)

func TestMain(m *testing.M) { harness.Main(m, harness.Nothing, cluster.Stop) }
