package integration

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/csi-addons/node-healer/test/harness"
	"github.com/csi-addons/node-healer/test/harness/faultfs"
)

// TestOneWorkerAtASuperblock has many callers ask for many volumes on one
// filesystem that does not answer, as those of one NFS export are: one worker
// waits for it, and with one request, for as long as it hangs.
func TestOneWorkerAtASuperblock(t *testing.T) {
	for name, breaks := range map[string]func(fs *faultfs.FS){
		"the daemon stands still":              (*faultfs.FS).Stop,
		"the daemon reads and does not answer": func(fs *faultfs.FS) { fs.Hang() },
	} {
		t.Run(name, func(t *testing.T) {
			n := harness.NewNode(t, "--standalone", "--probe-timeout=3s", "--slow-answer=3s").Start()
			next := newNeighbour(n)
			first, fs := n.NewFUSEVolume("first", faultfs.Config{})
			volumes := []*harness.Volume{first}
			for i := range 15 {
				volumes = append(volumes, n.NewStagedVolume("fuse", fmt.Sprintf("another %d", i), func(staging string) {
					harness.Must(t, unix.Mount(first.Staging, staging, "", unix.MS_BIND, ""))
				}))
			}
			for _, v := range volumes {
				n.Expect("healthy", v.Request())
			}
			breaks(fs)
			most := mostWaiting(fs, func() {
				for range 3 {
					askAll(t, n, volumes)
					next.untouched()
				}
			})
			if most != 1 {
				t.Errorf("%d requests waited for one filesystem, want 1", most)
			}
			harness.Eventually(t, "no second worker waits for the filesystem", func() bool { return len(uninterruptible(n)) <= 1 })
		})
	}
}

// askAll asks for all volumes at once, several times each.
func askAll(t *testing.T, n *harness.Node, volumes []*harness.Volume) {
	t.Helper()
	var wg sync.WaitGroup
	for _, v := range slices.Concat(volumes, volumes, volumes) {
		wg.Go(func() {
			a, err := n.Call(v.Request())
			busy := err != nil && strings.Contains(err.Error(), "is running")
			if !busy && (err != nil || !strings.Contains(a.GetMessage(), "NotResponding")) {
				t.Errorf("%s: %v %v", v.ID, a.GetMessage(), err)
			}
		})
	}
	wg.Wait()
}

// mostWaiting returns the largest number of requests that were seen waiting for
// the daemon while something was done.
func mostWaiting(fs *faultfs.FS, do func()) int {
	seen, done := make(chan int), make(chan struct{})
	go func() {
		most := 0
		for {
			most = max(most, fs.Waiting())
			select {
			case <-done:
				seen <- most
				return
			case <-time.After(time.Millisecond):
			}
		}
	}()
	do()
	close(done)
	return <-seen
}
