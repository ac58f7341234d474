package node

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/csi-addons/node-healer/pkg/facts"
)

// deviceEvents tells of block devices: the kernel's own uevents (netlink(7),
// NETLINK_KOBJECT_UEVENT). It sends them into every network namespace of the host's
// owner, so also to a pod with a network of its own.
type deviceEvents struct {
	// fd is not blocking; -1 where there is none.
	fd int
	// above has, for each device, the superblocks and device nodes that lie on it.
	above map[facts.Dev][]SuperblockEvent
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

// read returns what lies on devices that changed or went since the last time. Where
// messages were lost, that may be any.
func (d deviceEvents) read() map[SuperblockEvent]bool {
	changed := map[SuperblockEvent]bool{}
	buf := make([]byte, 8<<10) // of the kernel at most 2 KiB and a path
	for range maxMessages {
		n, from, err := unix.Recvfrom(d.fd, buf, 0)
		sender, _ := from.(*unix.SockaddrNetlink)
		switch {
		case errors.Is(err, unix.EINTR):
		case errors.Is(err, unix.ENOBUFS):
			for _, all := range d.above {
				for _, event := range all {
					changed[event] = true
				}
			}
		case err != nil:
			return changed
		case sender == nil || sender.Pid != 0 || sender.Groups&kernelGroup == 0: // not the kernel's
		default:
			if dev, is := deviceOf(buf[:n]); is {
				for _, event := range d.above[dev] {
					changed[event] = true
				}
			}
		}
	}
	return changed
}

// deviceOf returns the block device that a message is about, if it changed or went.
func deviceOf(message []byte) (dev facts.Dev, is bool) {
	fields := map[string]string{}
	for field := range strings.SplitSeq(string(message), "\x00") {
		name, value, _ := strings.Cut(field, "=")
		fields[name] = value
	}
	if fields["SUBSYSTEM"] != "block" || !slices.Contains([]string{"change", "remove", "offline"}, fields["ACTION"]) {
		return facts.Dev{}, false
	}
	dev, err := facts.ParseDev(fields["MAJOR"] + ":" + fields["MINOR"])
	return dev, err == nil
}

// maxBeneath bounds the devices that are followed for one superblock.
const maxBeneath = 64

// devicesBeneath returns a block device and those that it lies on: the disk of a
// partition, the devices of a mapping.
func (n *Node) devicesBeneath(dev facts.Dev) (all []facts.Dev) {
	seen := map[facts.Dev]bool{}
	var add func(dir string)
	add = func(dir string) {
		dev, err := facts.ParseDev(text(dir + "/dev"))
		if err != nil || seen[dev] || len(all) == maxBeneath {
			return
		}
		seen[dev], all = true, append(all, dev)
		if exists(dir + "/partition") {
			add(filepath.Dir(dir))
		}
		slaves, _ := os.ReadDir(dir + "/slaves")
		for _, slave := range slaves {
			if lower, err := follow(dir + "/slaves/" + slave.Name()); err == nil {
				add(lower)
			}
		}
	}
	if dir, err := follow(n.link(dev)); err == nil {
		add(dir)
	}
	return all
}

// devicesOf returns the devices that these mounts lie on, each with the superblocks and device nodes on
// it. The numbers of block volumes and of btrfs are those that their last probes found: no mount table
// shows them.
func (n *Node) devicesOf(mounts []facts.Mount) map[facts.Dev][]SuperblockEvent {
	above, seen := map[facts.Dev][]SuperblockEvent{}, map[storage]bool{}
	for _, m := range mounts {
		s := storageOf(m)
		if seen[s] {
			continue
		}
		seen[s] = true
		on, known := m.Dev, true
		if !m.OnDevice() {
			on, known = n.rdevs.get(rdevKeyOf(m))
		}
		if !known { // no filesystem of one disk
			continue
		}
		for _, device := range n.devicesBeneath(on) {
			above[device] = append(above[device], SuperblockEvent{Dev: s.dev, Root: s.root})
		}
	}
	return above
}
