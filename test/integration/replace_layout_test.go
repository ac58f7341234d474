package integration

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/csi-addons/node-healer/test/harness"
)

// TestReplaceLayouts heals wherever drivers stage, and whatever they publish.
func TestReplaceLayouts(t *testing.T) {
	for name, lay := range map[string]func(s *served){
		"a subdirectory is published": func(s *served) {
			s.Unpublish()
			harness.Must(s.Node.T, unix.Mount(filepath.Join(s.Staging, "sub"), s.MountPoint(), "", unix.MS_BIND, ""))
		},
		"staged below the staging path": func(s *served) {
			s.Unpublish()
			s.disk.Unstage()
			s.Staging = filepath.Join(s.Staging, "0001")
			harness.Mkdir(s.Node.T, s.Staging)
			s.disk.Restage()
			s.PublishAgain()
		},
	} {
		t.Run(name, func(t *testing.T) {
			n := harness.NewNode(t, "--standalone").Start()
			s := newServed(n, "with / odd ^ name")
			req := s.Request()
			lay(s)
			n.Expect("healthy", req)
			before, sum := n.Table(), s.Sum(s.MountPoint())
			for range 2 {
				s.die()
				n.Expect("healed", req)
				s.disk.SameTable(before)
				if s.Sum(s.MountPoint()) != sum {
					t.Error("the data differs")
				}
				n.Expect("healthy", req)
			}
		})
	}
}

// TestReplaceFromAnotherNamespace has the server in a mount namespace of its own,
// as a pod is, and behind a link to kubelet's root.
func TestReplaceFromAnotherNamespace(t *testing.T) {
	n := harness.NewNode(t)
	link := filepath.Join(n.Dir, "link")
	harness.Must(t, os.Symlink(n.Kubelet, link))
	n.Namespace = true
	n.Args = []string{"--standalone", "--kubelet-root=" + link, fmt.Sprintf("--host-mount-namespace=/proc/%d/ns/mnt", os.Getpid())}
	n.Start()
	s := newServed(n, "from elsewhere").known()
	for range 2 {
		s.die()
		n.Expect("healed", s.Request())
		s.back()
		n.Expect("healthy", s.Request())
	}
}

// TestReplaceNotSupported changes nothing where the kernel does not let a mount be
// put beneath another one, and says what to do.
func TestReplaceNotSupported(t *testing.T) {
	n := harness.NewNode(t, "--standalone")
	n.Less = []harness.Lessen{harness.Filtered(unix.SYS_MOVE_MOUNT)}
	n.Start()
	s := newServed(n, "on an old kernel").known()
	s.die()
	before := n.Table()
	for range 2 {
		n.Expect("abnormal", s.Request(), "Disconnected", "ReplaceNotSupported", "delete the pod")
		n.SameTable(before)
	}
}

// TestReplaceIsAudited writes down what is done, before and after.
func TestReplaceIsAudited(t *testing.T) {
	n := harness.NewNode(t, "--standalone").Start()
	s := newServed(n, "audited").known()
	s.die()
	n.Expect("healed", s.Request())
	lines := strings.Split(strings.TrimSpace(audit(t, n)), "\n")
	if len(lines) != 2 {
		t.Fatalf("the audit log has %q", lines)
	}
	for _, line := range lines {
		if !strings.Contains(line, `"replace"`) || !strings.Contains(line, s.MountPoint()) {
			t.Errorf("the audit log has %q", line)
		}
	}
}
