package main

import (
	"runtime"
	"sync"
)

// spareThreads is how many threads the server has from the start. When the node,
// or the pod's limit, has no process left, the Go runtime ends a program that
// needs one more; calls wait for workers on threads of their own for a moment.
const spareThreads = 24

// startThreads has the runtime make the spare threads, which it keeps.
func startThreads() {
	var all, done sync.WaitGroup
	all.Add(spareThreads)
	for range spareThreads {
		done.Go(func() {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			all.Done()
			all.Wait()
		})
	}
	done.Wait()
}
