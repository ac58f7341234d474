package integration

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/csi-addons/node-healer/pkg/api/healerpb"
	"github.com/csi-addons/node-healer/test/harness"
)

const callers = 256

// TestManyCallersOneVolume lets one of many callers through.
func TestManyCallersOneVolume(t *testing.T) {
	h := stopRebind(t, "ext4", "rebind/checked")
	codesSeen := callAll(h.n, func(int) *healerpb.NodeHealerRequest { return h.v.Request() })
	if codesSeen[codes.Aborted] != callers {
		t.Errorf("while one call works, the others get %v", codesSeen)
	}
	h.Resume()
	if a := h.Answer(); a == nil || a.GetAbnormal() {
		t.Errorf("the first call got %v", a)
	}
	h.n.SameTable(h.healthy)
	h.n.Expect("healthy", h.v.Request())
}

// TestManyVolumes answers for many volumes at once, and releases everything
// afterwards.
func TestManyVolumes(t *testing.T) {
	harness.NeedsFull(t)
	n := harness.NewNode(t, "--standalone", "--probe-timeout=30s").Start()
	volumes := make([]*harness.Volume, callers)
	for i := range volumes {
		volumes[i] = n.NewVolume("tmpfs", fmt.Sprintf("volume %d", i))
	}
	before := n.Table()
	request := func(i int) *healerpb.NodeHealerRequest { return volumes[i].Request() }
	if seen := callAll(n, request); seen[codes.OK] != callers {
		t.Fatalf("healthy volumes: %v\n%s", seen, n.Log)
	}
	// An idle worker, of which there may be one more later, takes two.
	ownFiles := func() int { return openFiles(t, n.PID()) - 2*len(n.Workers()) }
	files := ownFiles()
	for _, v := range volumes {
		v.Unpublish()
	}
	if seen := callAll(n, request); seen[codes.OK] != callers {
		t.Fatalf("broken volumes: %v\n%s", seen, n.Log)
	}
	n.SameTable(before)
	harness.Eventually(t, "the server gives its descriptors back", func() bool { return ownFiles() <= files })
	harness.Eventually(t, "only idle workers are left", func() bool { return len(n.Workers()) <= idleWorkers })
	for _, w := range n.Workers() {
		holdsNothing(t, w)
	}
}

// TestCallerLeaves keeps a volume busy until the work on it has ended, after the
// caller left.
func TestCallerLeaves(t *testing.T) {
	h := stopRebind(t, "ext4", "rebind/moved")
	h.Leave()
	if _, err := h.n.Call(h.v.Request()); status.Code(err) != codes.Aborted {
		t.Errorf("while the work goes on: %v", err)
	}
	h.Resume()
	harness.Eventually(t, "the volume is free again", func() bool { _, err := h.n.Call(h.v.Request()); return err == nil })
	h.n.SameTable(h.healthy)
}

// callAll calls for every volume at once and counts the codes.
func callAll(n *harness.Node, request func(i int) *healerpb.NodeHealerRequest) map[codes.Code]int {
	var (
		wg   sync.WaitGroup
		mu   sync.Mutex
		seen = map[codes.Code]int{}
	)
	for i := range callers {
		wg.Go(func() {
			a, err := n.Call(request(i))
			mu.Lock()
			defer mu.Unlock()
			seen[status.Code(err)]++
			if err == nil && a.GetAbnormal() {
				n.T.Errorf("volume %d: %s", i, a.GetMessage())
			}
		})
	}
	wg.Wait()
	return seen
}

func openFiles(t testing.TB, pid int) int {
	t.Helper()
	entries, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	harness.Must(t, err)
	return len(entries)
}

// holdsNothing checks that an idle worker has its standard files and its socket
// and nothing else.
func holdsNothing(t *testing.T, pid int) {
	t.Helper()
	links, err := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
	harness.Must(t, err)
	for _, l := range links {
		target, _ := os.Readlink(l)
		switch filepath.Base(l) {
		case "0", "1", "2", "3":
		default:
			// The Go runtime's own: the poller, and the CPU limits of its cgroup.
			if !strings.HasPrefix(target, "anon_inode:") && !strings.HasPrefix(target, "/sys/fs/cgroup/") {
				t.Errorf("an idle worker holds %s as %s", target, l)
			}
		}
	}
	if cwd, _ := os.Readlink(fmt.Sprintf("/proc/%d/cwd", pid)); cwd != "/" {
		t.Errorf("an idle worker is in %s", cwd)
	}
}
