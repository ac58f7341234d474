// Command fusedaemon is the FUSE daemons that the tests' volumes have. The test binary could
// be them itself, but needs several times as long to start, and starts hundreds of them.
package main

import (
	"github.com/csi-addons/node-healer/test/harness/diskfs"
	"github.com/csi-addons/node-healer/test/harness/faultfs"
)

func main() {
	faultfs.Main()
	diskfs.Main()
}
