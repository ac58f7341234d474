package app

import (
	"runtime"
	"sync"
)

// spareThreads is how many threads the server has from the start. The Go runtime ends
// a program that cannot get another thread, as on a node, or in a pod, whose process
// limit is reached; each call that waits for a worker blocks a thread for a moment.
const spareThreads = 24

// startThreads makes the runtime start the spare threads, which it then keeps.
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
