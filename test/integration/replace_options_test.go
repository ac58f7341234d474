package integration

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/csi-addons/node-healer/test/harness"
)

// replaceInstants are all instants at which a worker can be stopped while it
// replaces a mount without a user, in the order in which it comes by.
var replaceInstants = []string{
	"replace/cloned", "replace/checked", "replace/beneath", "replace/copies", "replace/detached", "replace/verified",
	"finalize", "finalize/checked", "finalize/alone", "finalize/set",
	"finalize/copies", "unmark/checked", "unmark/alone", "unmark/set",
}

// replaceTurns are those of them after which something else stands at the mount point,
// or may be done with it.
var replaceTurns = []string{"replace/cloned", "replace/beneath", "replace/detached", "finalize", "finalize/set", "unmark/set"}

// TestReplaceKeepsOptions has each mount point's own options again.
func TestReplaceKeepsOptions(t *testing.T) {
	for name, options := range map[string]uintptr{
		"read-only":        unix.MS_RDONLY,
		"noexec":           unix.MS_NOEXEC,
		"without suid":     unix.MS_NOSUID | unix.MS_NODEV,
		"without times":    unix.MS_NOATIME | unix.MS_NODIRATIME,
		"strict":           unix.MS_STRICTATIME,
		"follows no links": unix.MS_NOSYMFOLLOW,
		"all of them":      unix.MS_RDONLY | unix.MS_NOEXEC | unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOATIME,
	} {
		t.Run(name, func(t *testing.T) {
			n := harness.NewNode(t, "--standalone").Start()
			s := newServed(n, "options")
			harness.Must(t, unix.Mount("", s.MountPoint(), "", unix.MS_REMOUNT|unix.MS_BIND|options, ""))
			s.known()
			s.die()
			n.Expect("healed", s.Request())
			s.back()
			n.Expect("healthy", s.Request())
		})
	}
}

// TestReplaceKeepsPrivate leaves a mount point private that was private on a shared
// kubelet root.
func TestReplaceKeepsPrivate(t *testing.T) {
	n := harness.NewNode(t, "--standalone").Start()
	s := newServed(n, "private")
	harness.Must(t, unix.Mount("", s.MountPoint(), "", unix.MS_PRIVATE, ""))
	s.known()
	s.die()
	n.Expect("healed", s.Request())
	s.back()
}

// TestReadOnlyAtEveryInstant replaces at a mount point that is published read-only.
// A process that writes there all the time always fails, and at no
// instant does a writable mount stand there.
func TestReadOnlyAtEveryInstant(t *testing.T) {
	n := harness.NewNode(t, "--standalone")
	n.Pause = strings.Join(replaceInstants, ",")
	n.Start()
	s := newServed(n, "read-only")
	harness.Must(t, unix.Mount("", s.MountPoint(), "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY, ""))
	s.known()
	w := startWriter(t, filepath.Join(s.MountPoint(), "written"))
	for range 3 {
		s.die()
		stops := 0
		a := atEachStop(n, s.Request(), func() {
			stops++
			for _, m := range harness.Layers(t, s.MountPoint()) {
				if !strings.HasPrefix(m.Attr.String(), "ro,") {
					t.Errorf("at stop %d a mount of %s is %s", stops, m.Dev, m.Attr)
				}
			}
		})
		if a == nil || a.GetAbnormal() || stops != len(replaceInstants) {
			t.Errorf("got %v after %d stops", a, stops)
		}
		s.back()
	}
	for _, err := range w.stop() {
		if !slices.ContainsFunc([]error{unix.EROFS, unix.ENOTCONN, unix.ECONNABORTED, unix.EIO}, func(e error) bool { return errors.Is(err, e) }) {
			t.Errorf("who tried to write got %v", err)
		}
	}
}

// writer tries to make a file all the time.
type writer struct {
	enough chan struct{}
	gone   sync.WaitGroup
	// saw has each error once, nil for none.
	saw []error
}

func startWriter(t *testing.T, path string) *writer {
	t.Helper()
	w := &writer{enough: make(chan struct{})}
	w.gone.Go(func() {
		for {
			select {
			case <-w.enough:
				return
			default:
			}
			f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY, 0o600)
			if err == nil {
				_ = f.Close()
			}
			var errno syscall.Errno
			errors.As(err, &errno)
			if !slices.Contains(w.saw, error(errno)) {
				w.saw = append(w.saw, errno)
			}
		}
	})
	t.Cleanup(func() { w.stop() })
	return w
}

// stop returns all errors that there were.
func (w *writer) stop() []error {
	select {
	case <-w.enough:
	default:
		close(w.enough)
	}
	w.gone.Wait()
	return w.saw
}
