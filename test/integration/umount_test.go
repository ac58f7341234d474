package integration

import (
	"errors"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/csi-addons/node-healer/test/harness"
)

// rounds is how often each volume is published and unpublished.
const rounds = 200

// TestUmountWhileChecked publishes and unpublishes a volume again and again, as
// a driver does, and now and then unstages it, while several callers ask for it
// without a pause. Every answer says that it is mounted or that it is not.
func TestUmountWhileChecked(t *testing.T) {
	for _, fs := range kinds {
		t.Run(fs, func(t *testing.T) {
			n := harness.NewNode(t).Start()
			v := n.NewVolume(fs, "unpublished")
			n.Expect("healthy", v.Request())
			asked := n.AskContinuously(3, v.Request())
			busy := tries{}
			begun := time.Now()
			for i := range rounds {
				time.Sleep(time.Duration(i%20) * 100 * time.Microsecond) // at every instant of a check
				busy.umount(t, v.MountPoint())
				if i%25 == 0 {
					busy.umount(t, v.StagedFile())
					free(t, v)
					v.Stage()
				}
				harness.Must(t, unix.Mount(v.StagedFile(), v.MountPoint(), "", unix.MS_BIND, ""))
			}
			took := time.Since(begun)
			answers := asked.Stop()
			for _, a := range answers {
				onlyThereOrNot(t, a)
			}
			if busy.busy > 0 {
				t.Errorf("%d of %d umounts failed", busy.busy, busy.all)
			}
			t.Logf("%d umounts in %s beside %d answers", busy.all, took.Round(time.Millisecond), len(answers))
		})
	}
}

// tries counts umounts.
type tries struct{ all, busy int }

func (c *tries) umount(t *testing.T, path string) {
	t.Helper()
	c.all++
	for first := true; ; first = false {
		err := unix.Unmount(path, 0)
		if err == nil {
			return
		}
		if !errors.Is(err, unix.EBUSY) {
			t.Fatal(err)
		}
		if first {
			c.busy++
		}
	}
}

// free waits until a volume's disk has no user: a check under way may have it
// for a moment after the umount.
func free(t *testing.T, v *harness.Volume) {
	t.Helper()
	if v.Device == "" {
		return
	}
	harness.Eventually(t, "the disk is free", func() bool { return claim(v.Device) == nil })
}

// claim opens a disk the way that fails while another user has claimed it.
func claim(device string) error {
	fd, err := unix.Open(device, unix.O_RDONLY|unix.O_EXCL|unix.O_CLOEXEC, 0)
	if err == nil {
		err = unix.Close(fd)
	}
	return err
}

// onlyThereOrNot fails the test for an answer that is more than that a volume
// works, is not mounted, is busy with another call, or kept changing.
func onlyThereOrNot(t *testing.T, a harness.Answer) {
	t.Helper()
	switch status.Code(a.Err) {
	case codes.OK, codes.Aborted:
	case codes.NotFound: // the driver has just removed the directory
	case codes.Unknown:
		if !strings.Contains(a.Err.Error(), "the mount table kept changing") {
			t.Error(a.Err)
		}
	default:
		t.Error(a.Err)
	}
	if m := a.GetMessage(); a.GetAbnormal() && (!strings.Contains(m, "NotMounted") || otherReason(m)) {
		t.Error(m)
	}
}

func otherReason(message string) bool {
	for _, reason := range []string{
		"WrongVolumeMounted", "StackedMounts", "IOError", "NotResponding", "ReadOnlyFilesystem", "StaleFileHandle",
		"DeviceMissing", "DeviceReadError", "NotABlockDevice", "FilesystemShutdown", "Disconnected",
	} {
		if strings.Contains(message, reason) {
			return true
		}
	}
	return false
}
