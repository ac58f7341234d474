//go:build faults

package main

import "os"

// workerEnv also hands on the instant at which test builds of the worker pause.
func workerEnv() []string {
	return []string{"GOMAXPROCS=1", workerGC, "NODE_HEALER_PAUSE=" + os.Getenv("NODE_HEALER_PAUSE")}
}
