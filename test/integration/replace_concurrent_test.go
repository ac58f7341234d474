package integration

import (
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/csi-addons/node-healer/pkg/api/healerpb"
	"github.com/csi-addons/node-healer/test/harness"
)

// TestReplaceManyAtOnce heals when all daemons of a driver die together, by concurrent
// calls, while a kubelet mounts and unmounts other volumes.
func TestReplaceManyAtOnce(t *testing.T) {
	n := harness.NewNode(t, "--standalone").Start()
	next := newNeighbour(n)
	const volumes = 6
	all := make([]*served, volumes)
	for i := range all {
		all[i] = newServed(n, fmt.Sprintf("volume %d", i)).known()
	}
	for range 2 {
		for _, s := range all {
			s.die()
		}
		quiet := n.Table()
		busy := mountAllTheTime(t, filepath.Join(n.Kubelet, "pods", harness.OtherPod, "volumes/kubernetes.io~empty-dir/other"))
		answers, errs := make([]*healerpb.NodeHealerResponse, volumes), make([]error, volumes)
		var calls sync.WaitGroup
		for i, s := range all {
			calls.Go(func() { answers[i], errs[i] = n.Call(s.Request()) })
		}
		calls.Wait()
		busy()
		for i, s := range all {
			if a := answers[i]; errs[i] != nil || !strings.HasPrefix(a.GetMessage(), "healed:") {
				t.Errorf("volume %d: %v, %v", i, a, errs[i])
			}
			if s.Sum(s.MountPoint()) != s.sum {
				t.Errorf("volume %d has other data", i)
			}
			n.Expect("healthy", s.Request())
		}
		if got := n.Table(); len(got) != len(quiet) {
			t.Errorf("there were %d mounts, now there are\n%s", len(quiet), strings.Join(got, "\n"))
		}
		next.untouched()
	}
}

// mountAllTheTime mounts and unmounts something, until it is told to stop.
func mountAllTheTime(t *testing.T, at string) (stop func()) {
	t.Helper()
	harness.Mkdir(t, at)
	enough := make(chan struct{})
	var gone sync.WaitGroup
	gone.Go(func() {
		for {
			select {
			case <-enough:
				return
			default:
			}
			if err := unix.Mount("other", at, "tmpfs", 0, "size=1m"); err != nil {
				t.Errorf("mount: %v", err)
				return
			}
			if err := unix.Unmount(at, unix.MNT_DETACH); err != nil {
				t.Errorf("umount: %v", err)
				return
			}
		}
	})
	stop = sync.OnceFunc(func() { close(enough); gone.Wait() })
	t.Cleanup(stop)
	return stop
}
