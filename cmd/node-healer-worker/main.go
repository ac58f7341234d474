// node-healer-worker is the process in which node-healer does what may never
// return. It is started by node-healer only and ends with it.
package main

import (
	"fmt"
	"os"

	"github.com/csi-addons/node-healer/pkg/worker"
	"github.com/csi-addons/node-healer/pkg/workerops"
)

func main() {
	if err := worker.Serve(workerops.Ops()...); err != nil {
		fmt.Fprintln(os.Stderr, "node-healer-worker:", err)
		os.Exit(1)
	}
}
