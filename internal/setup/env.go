//go:build !faults

package setup

// workerEnv returns a worker's whole environment. It has nothing of the server's own,
// and one thread at a time is all that a worker needs.
func workerEnv() []string { return []string{"GOMAXPROCS=1", workerGC} }
