// The FUSE daemon behind the demo's second volume, which is that of the tests'
// CSI driver: DATA is the directory that it shows AT a path, under NAME in the
// mount table. It says on file descriptor 3 that it is mounted.
package main

import (
	"fmt"
	"os"

	"github.com/csi-addons/node-healer/test/harness/csidriver"
)

func main() {
	if len(os.Args) != 4 {
		fail("usage: demo-fuse DATA AT NAME 3>READY")
	}
	// What the driver tells its own daemons.
	if err := os.Setenv("NODE_HEALER_TEST_CSI_DRIVER", "daemon"); err != nil {
		fail(err)
	}
	csidriver.Main()
	fail("demo-fuse: the driver does not know that it is a daemon")
}

func fail(why any) {
	fmt.Fprintln(os.Stderr, why)
	os.Exit(2)
}
