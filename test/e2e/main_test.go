package e2e

import (
	"testing"

	"github.com/csi-addons/node-healer/test/harness/cluster"
)

func TestMain(m *testing.M) { Main(m, cluster.Stop) }
