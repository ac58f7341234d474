package main

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/csi-addons/node-healer/pkg/nodeserver"
)

// probeTime is below the probe timeout in the manifest.
const probeTime = 4 * time.Second

// probe asks the server in the same container whether it serves, for kubelet.
func probe(endpoint string) (exitCode int) {
	ctx, cancel := context.WithTimeout(context.Background(), probeTime)
	defer cancel()
	if err := nodeserver.ProbeSocket(ctx, endpoint); err != nil {
		fmt.Fprintln(os.Stderr, "node-healer:", err)
		return 1
	}
	return 0
}
