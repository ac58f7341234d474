// node-healer-worker is the process in which node-healer runs operations that may
// never return. Only node-healer starts it, and it ends with node-healer.
package main

import (
	"fmt"
	"os"

	"github.com/csi-addons/node-healer/internal/operation"
	"github.com/csi-addons/node-healer/internal/ops"
)

func main() {
	if err := operation.Serve(ops.Ops()...); err != nil {
		fmt.Fprintln(os.Stderr, "node-healer-worker:", err)
		os.Exit(1)
	}
}
