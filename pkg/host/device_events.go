package host

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"
)

// deviceEvents tells of block devices: the kernel's own uevents (netlink(7),
// NETLINK_KOBJECT_UEVENT). It sends them into every network namespace of the host's
// owner, so also to a pod with a network of its own.
type deviceEvents struct {
	// fd is not blocking; -1 where there is none.
	fd int
	// above has, for each device, the superblocks that lie on it.
	above map[Dev][]Dev
}

// kernelGroup is the multicast group of the kernel's messages; those of udev are in
// another one.
const kernelGroup = 1

func openDeviceEvents() (deviceEvents, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.NETLINK_KOBJECT_UEVENT)
	if err != nil {
		return deviceEvents{fd: -1}, fmt.Errorf("events of devices: %w", err)
	}
	if err := unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: kernelGroup}); err != nil {
		_ = unix.Close(fd)
		return deviceEvents{fd: -1}, fmt.Errorf("events of devices: %w", err)
	}
	return deviceEvents{fd: fd}, nil
}

// maxMessages bounds what is read at a time: a storm of events is one.
const maxMessages = 1024

// read returns the superblocks whose devices changed or went since the last time. Where
// messages were lost, that may be any.
func (d deviceEvents) read() map[Dev]bool {
	changed := map[Dev]bool{}
	buf := make([]byte, 8<<10) // of the kernel at most 2 KiB and a path
	for range maxMessages {
		n, from, err := unix.Recvfrom(d.fd, buf, 0)
		sender, _ := from.(*unix.SockaddrNetlink)
		switch {
		case errors.Is(err, unix.EINTR):
		case errors.Is(err, unix.ENOBUFS):
			for _, all := range d.above {
				for _, dev := range all {
					changed[dev] = true
				}
			}
		case err != nil:
			return changed
		case sender == nil || sender.Pid != 0 || sender.Groups&kernelGroup == 0: // not the kernel's
		default:
			if dev, is := deviceOf(buf[:n]); is {
				for _, superblock := range d.above[dev] {
					changed[superblock] = true
				}
			}
		}
	}
	return changed
}

// deviceOf returns the block device that a message is about, if it changed or went.
func deviceOf(message []byte) (dev Dev, is bool) {
	var action, subsystem, major, minor string
	for field := range bytes.SplitSeq(message, []byte{0}) {
		name, value, _ := bytes.Cut(field, []byte("="))
		switch string(name) {
		case "ACTION":
			action = string(value)
		case "SUBSYSTEM":
			subsystem = string(value)
		case "MAJOR":
			major = string(value)
		case "MINOR":
			minor = string(value)
		}
	}
	if subsystem != "block" || action != "change" && action != "remove" && action != "offline" {
		return Dev{}, false
	}
	dev, err := ParseDev(major + ":" + minor)
	return dev, err == nil
}

// maxBeneath bounds the devices that are followed for one superblock.
const maxBeneath = 64

// devicesBeneath returns a block device and those that it lies on: the disk of a
// partition, the devices of a mapping.
func (n *Node) devicesBeneath(dev Dev) (all []Dev) {
	seen := map[Dev]bool{}
	var add func(dir string)
	add = func(dir string) {
		text, err := readFile(filepath.Join(dir, "dev"))
		if err != nil {
			return
		}
		dev, err := ParseDev(text)
		if err != nil || seen[dev] || len(all) == maxBeneath {
			return
		}
		seen[dev], all = true, append(all, dev)
		if _, err := readFile(filepath.Join(dir, "partition")); err == nil {
			add(filepath.Dir(dir))
		}
		slaves, _ := os.ReadDir(filepath.Join(dir, "slaves"))
		for _, slave := range slaves {
			if lower, err := filepath.EvalSymlinks(filepath.Join(dir, "slaves", slave.Name())); err == nil {
				add(lower)
			}
		}
	}
	name := strconv.FormatUint(uint64(dev.Major), 10) + ":" + strconv.FormatUint(uint64(dev.Minor), 10)
	if dir, err := filepath.EvalSymlinks(filepath.Join(string(n.cfg.Sysfs), "dev/block", name)); err == nil {
		add(dir)
	}
	return all
}

// devicesOf returns the devices that these mounts lie on, each with their superblocks.
func (n *Node) devicesOf(mounts []VolumeMount) map[Dev][]Dev {
	above, seen := map[Dev][]Dev{}, map[Dev]bool{}
	for _, m := range mounts {
		if m.Dev.Major == 0 || seen[m.Dev] { // no filesystem of one disk
			continue
		}
		seen[m.Dev] = true
		for _, device := range n.devicesBeneath(m.Dev) {
			above[device] = append(above[device], m.Dev)
		}
	}
	return above
}
