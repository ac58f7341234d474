//go:build !faults

package main

// workerEnv is a worker's whole environment: nothing of the server's own is
// handed on, and one thread at a time is all that a worker needs.
func workerEnv() []string { return []string{"GOMAXPROCS=1", workerGC} }
