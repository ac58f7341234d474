package mount

import (
	"fmt"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// maxValue is the longest value that fsconfig(2) takes. A driver's mount may have a longer
// source, as mount(2) takes a page.
const maxValue = 255

// DeadFUSE returns a detached FUSE mount that has no daemon and never gets one: whoever
// walks to it meets ENOTCONN, as where a daemon has died. fsType and source are what the
// mount table is to show, cut where they are too long (fsopen(2), Linux 5.2).
func DeadFUSE(fsType, source string) (fd int, err error) {
	device, err := Open(unix.AT_FDCWD, "/dev/fuse", unix.O_RDWR)
	if err != nil {
		return -1, fmt.Errorf("/dev/fuse: %w", err)
	}
	defer unix.Close(device) // with the last descriptor the connection ends
	return ConnectFUSE(device, fsType, source)
}

// ConnectFUSE makes a FUSE device that was just opened that of a new connection, and
// returns a detached mount of it.
func ConnectFUSE(device int, fsType, source string) (fd int, err error) {
	fs, err := RetryEINTR(func() (int, error) { return unix.Fsopen("fuse", unix.FSOPEN_CLOEXEC) })
	if err != nil {
		return -1, fmt.Errorf("fsopen: %w", err)
	}
	defer unix.Close(fs)
	options := [][2]string{
		{"source", source}, {"fd", strconv.Itoa(device)}, {"rootmode", strconv.FormatUint(unix.S_IFDIR, 8)}, {"user_id", "0"}, {"group_id", "0"},
	}
	if _, subtype, found := strings.Cut(fsType, "."); found {
		options = append(options, [2]string{"subtype", subtype})
	}
	for _, o := range options {
		if err := unix.FsconfigSetString(fs, o[0], o[1][:min(len(o[1]), maxValue)]); err != nil {
			return -1, fmt.Errorf("fsconfig %s: %w", o[0], err)
		}
	}
	// Else all but root meet EACCES, which means something else.
	if err := unix.FsconfigSetFlag(fs, "allow_other"); err != nil {
		return -1, fmt.Errorf("fsconfig allow_other: %w", err)
	}
	if err := unix.FsconfigCreate(fs); err != nil {
		return -1, fmt.Errorf("fsconfig: %w", err)
	}
	fd, err = unix.Fsmount(fs, unix.FSMOUNT_CLOEXEC, unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NODEV)
	if err != nil {
		return -1, fmt.Errorf("fsmount: %w", err)
	}
	return fd, nil
}
