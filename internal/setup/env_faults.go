//go:build faults

package setup

import "os"

// workerEnv also passes on the instant at which test builds of the worker pause, and
// which kernel they behave as on.
func workerEnv() []string {
	return []string{
		"GOMAXPROCS=1", workerGC, "NODE_HEALER_PAUSE=" + os.Getenv("NODE_HEALER_PAUSE"),
		"NODE_HEALER_WITHOUT_BENEATH=" + os.Getenv("NODE_HEALER_WITHOUT_BENEATH"),
	}
}
