package bench

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/csi-addons/node-healer/test/harness"
)

// loopSize is the size of a volume's disk: large enough for a journal.
const loopSize = 16 << 20

// madeLoops is the file that lists the loop devices that were made, by number,
// in the guard's directory.
const madeLoops = "loops"

// loops makes ext4 volumes on loop devices.
type loops struct {
	node *harness.Node
	// dir is a tmpfs: what is measured is the healer, not the machine's disk.
	dir string
	// made lists the devices for the guard.
	made *os.File
}

func newLoops(n *harness.Node) *loops {
	n.T.Helper()
	l := &loops{node: n, dir: filepath.Join(n.Dir, "disks")}
	harness.Mkdir(n.T, l.dir)
	harness.Must(n.T, unix.Mount("disks", l.dir, "tmpfs", 0, "mode=0700"))
	made, err := os.OpenFile(filepath.Join(os.Getenv(guarded), madeLoops), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	harness.Must(n.T, err)
	n.T.Cleanup(func() { _ = made.Close() })
	l.made = made
	return l
}

// volume makes a healthy volume.
func (l *loops) volume(id string) *harness.Volume {
	l.node.T.Helper()
	t := l.node.T
	image := filepath.Join(l.dir, id+".img")
	harness.Must(t, os.WriteFile(image, nil, 0o600))
	harness.Must(t, os.Truncate(image, loopSize))
	harness.Run(t, "mkfs.ext4", "-q", "-F", "-m0", image)
	device := l.attach(image)
	// The mount keeps the device from now on, and it goes with the mount.
	defer device.Close()
	return l.node.NewStagedVolume("ext4", id, func(staging string) {
		harness.Must(t, unix.Mount(device.Name(), staging, "ext4", unix.MS_NOSUID, ""))
	})
}

// attach makes a loop device that is detached when its last user closes it.
func (l *loops) attach(image string) *os.File {
	l.node.T.Helper()
	file, err := os.OpenFile(image, os.O_RDWR, 0)
	harness.Must(l.node.T, err)
	defer file.Close()
	config := unix.LoopConfig{Fd: uint32(file.Fd())}
	config.Info.Flags = unix.LO_FLAGS_AUTOCLEAR
	copy(config.Info.File_name[:len(config.Info.File_name)-1], image)
	for {
		device := l.add()
		err := unix.IoctlLoopConfigure(int(device.Fd()), &config)
		if err == nil {
			return device
		}
		_ = device.Close()
		if !errors.Is(err, unix.EBUSY) { // another process was faster
			l.node.T.Fatalf("configure %s: %v", device.Name(), err)
		}
	}
}

// add makes one more loop device.
func (l *loops) add() *os.File {
	l.node.T.Helper()
	number, err := loopControl(unix.LOOP_CTL_ADD, -1)
	harness.Must(l.node.T, err)
	_, err = fmt.Fprintln(l.made, number)
	harness.Must(l.node.T, err)
	device, err := os.OpenFile(fmt.Sprintf("/dev/loop%d", number), os.O_RDWR, 0)
	harness.Must(l.node.T, err)
	return device
}

// removeLoops removes the devices that were made, once they are detached.
func removeLoops(dir string) error {
	raw, err := os.ReadFile(filepath.Join(dir, madeLoops))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	errs := []error{err}
	deadline := time.Now().Add(guardPatience)
	for _, field := range strings.Fields(string(raw)) {
		number, err := strconv.Atoi(field)
		for err == nil {
			_, err = loopControl(unix.LOOP_CTL_REMOVE, number)
			if err == nil || !errors.Is(err, unix.EBUSY) || time.Now().After(deadline) {
				break
			}
			err = nil
			time.Sleep(10 * time.Millisecond)
		}
		if err != nil && !errors.Is(err, unix.ENODEV) {
			errs = append(errs, fmt.Errorf("loop device %s is left: %w", field, err))
		}
	}
	return errors.Join(errs...)
}

// loopControl asks loop(4)'s control device.
func loopControl(request uint, number int) (int, error) {
	control, err := os.OpenFile("/dev/loop-control", os.O_RDWR, 0)
	if err != nil {
		return 0, err
	}
	defer control.Close()
	got, _, errno := unix.Syscall(unix.SYS_IOCTL, control.Fd(), uintptr(request), uintptr(number))
	if errno != 0 {
		return 0, errno
	}
	return int(got), nil
}
