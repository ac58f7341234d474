package ops

import (
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// A daemon that has run out of descriptors or memory is a sick one: its errno is
// an answer, whatever it reminds of.
func TestTroubleOfADaemonIsAnAnswer(t *testing.T) {
	needsRoot(t)
	path := filepath.Join(realDir(t), "volume")
	must(t, os.Mkdir(path, 0o700))
	d := mountFUSE(t, path)
	defer d.end()
	for _, want := range []syscall.Errno{0, unix.EMFILE, unix.ENFILE, unix.ENOMEM, unix.EACCES, unix.ENOTCONN} {
		d.refuse.Store(int32(want))
		all, err := inspect([]InspectQuery{{Probe: &ProbeQuery{Path: path, Root: true}}})
		if err != nil || all[0].Probe.Errno != want || want != 0 && all[0].Probe.Op != "open" {
			t.Errorf("%v: %+v, %v", want, all, err)
		}
	}
}

// What this process has run out of says nothing of a volume.
func TestTroubleOfOurOwnIsAnError(t *testing.T) {
	v := newVolume(t, "tmpfs")
	var before unix.Rlimit
	must(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &before))
	must(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 3, Max: before.Max}))
	a, lookErr := inspect([]InspectQuery{{Probe: &ProbeQuery{Path: v.path, Root: true}}})
	w, writeErr := write(WriteQuery{Path: v.path})
	deadErr := stillDead("ext4", unix.EMFILE)
	must(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &before))
	if !errors.Is(deadErr, unix.EMFILE) || stillDead("ext4", 0) == nil || stillDead("ext4", unix.ENOTCONN) != nil || stillDead("ext4", unix.EMFILE) != nil {
		t.Errorf("whether a mount is dead: %v", deadErr)
	}
	if !errors.Is(lookErr, unix.EMFILE) || !errors.Is(writeErr, unix.EMFILE) {
		t.Errorf("look: %+v, %v; write: %+v, %v", a, lookErr, w, writeErr)
	}
	for _, err := range []error{nil, unix.EIO, os.ErrInvalid} {
		if ownShortage(err) != nil {
			t.Errorf("%v", err)
		}
	}
}
