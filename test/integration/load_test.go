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
)

const callers = 256

// TestManyCallersOneVolume lets one of many callers through.
func TestManyCallersOneVolume(t *testing.T) {
	n := newNode(t, "--standalone")
	n.pause = "place/checked"
	n.start()
	v := n.newVolume("ext4", "wanted by all")
	n.expect("healthy", v.request())
	before := n.table()
	v.unpublish()
	first := n.asyncCall(v.request())
	worker := n.stopped()

	codesSeen := n.callAll(func(int) *healerpb.NodeHealerRequest { return v.request() })
	if codesSeen[codes.Aborted] != callers {
		t.Errorf("while one call works, the others get %v", codesSeen)
	}
	resume(t, worker)
	if a := <-first; a == nil || a.GetAbnormal() {
		t.Errorf("the first call got %v", a)
	}
	n.sameTable(before)
	n.expect("healthy", v.request())
}

// TestManyVolumes answers for many volumes at once, and gives everything back.
func TestManyVolumes(t *testing.T) {
	n := newNode(t, "--standalone", "--probe-timeout=30s").start()
	volumes := make([]*volume, callers)
	for i := range volumes {
		volumes[i] = n.newVolume("tmpfs", fmt.Sprintf("volume %d", i))
	}
	before := n.table()
	request := func(i int) *healerpb.NodeHealerRequest { return volumes[i].request() }
	if seen := n.callAll(request); seen[codes.OK] != callers {
		t.Fatalf("healthy volumes: %v\n%s", seen, n.log)
	}
	fds := openFiles(t, n.server.Process.Pid)
	for _, v := range volumes {
		v.unpublish()
	}
	if seen := n.callAll(request); seen[codes.OK] != callers {
		t.Fatalf("broken volumes: %v\n%s", seen, n.log)
	}
	n.sameTable(before)
	eventually(t, "the server gives its descriptors back", func() bool { return openFiles(t, n.server.Process.Pid) <= fds })
	eventually(t, "only idle workers are left", func() bool { return len(n.workers()) <= 4 })
	for _, w := range n.workers() {
		holdsNothing(t, w)
	}
}

// TestCallerLeaves frees a volume only when the work on it has ended.
func TestCallerLeaves(t *testing.T) {
	n := newNode(t, "--standalone")
	n.pause = "place/moved"
	n.start()
	v := n.newVolume("ext4", "left alone")
	n.expect("healthy", v.request())
	before := n.table()
	v.unpublish()
	leave := n.callAndLeave(v.request())
	worker := n.stopped()
	leave()
	if _, err := n.call(v.request()); status.Code(err) != codes.Aborted {
		t.Errorf("while the work goes on: %v", err)
	}
	resume(t, worker)
	eventually(t, "the volume is free again", func() bool { _, err := n.call(v.request()); return err == nil })
	n.sameTable(before)
}

// callAll calls for every volume at once and counts the codes.
func (n *node) callAll(request func(i int) *healerpb.NodeHealerRequest) map[codes.Code]int {
	var (
		wg   sync.WaitGroup
		mu   sync.Mutex
		seen = map[codes.Code]int{}
	)
	for i := range callers {
		wg.Go(func() {
			a, err := n.call(request(i))
			mu.Lock()
			defer mu.Unlock()
			seen[status.Code(err)]++
			if err == nil && a.GetAbnormal() {
				n.t.Errorf("volume %d: %s", i, a.GetMessage())
			}
		})
	}
	wg.Wait()
	return seen
}

func openFiles(t *testing.T, pid int) int {
	t.Helper()
	entries, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	must(t, err)
	return len(entries)
}

// holdsNothing checks that an idle worker has its standard files and its socket
// and nothing else.
func holdsNothing(t *testing.T, pid int) {
	t.Helper()
	links, err := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
	must(t, err)
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
