//go:build faults

package main

import "os"

// workerEnv also hands on the instant at which test builds of the worker pause, and
// which kernel they take this one for.
func workerEnv() []string {
	return []string{
		"GOMAXPROCS=1", workerGC, "NODE_HEALER_PAUSE=" + os.Getenv("NODE_HEALER_PAUSE"),
		"NODE_HEALER_WITHOUT_BENEATH=" + os.Getenv("NODE_HEALER_WITHOUT_BENEATH"),
	}
}
