package harness

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
)

// Multipath is a mapping over two paths to one disk, which the kernel's scsi_debug
// pretends to have.
type Multipath struct {
	Mapping
	// paths are the disks' names, as in "sda".
	paths []string
}

// NewVolumeOnMultipath makes a volume on a multipath mapping, set up as multipathd
// does.
func (n *Node) NewVolumeOnMultipath(fs, id string) (*Volume, *Multipath) {
	n.T.Helper()
	t := n.T
	NeedsVM(t, "device-mapper and pretended disks")
	t.Setenv("DM_DISABLE_UDEV", "1")
	for _, module := range []string{"sd_mod", "dm_multipath", "dm_round_robin"} {
		Run(t, "modprobe", module)
	}
	before := disks(t)
	// Two hosts, each with a way to the same disk.
	Run(t, "modprobe", "scsi_debug", "add_host=2", "vpd_use_hostno=0", "dev_size_mb=32")
	m := &Multipath{}
	t.Cleanup(func() { Eventually(t, "the disks are gone", func() bool { return modprobeRemove("scsi_debug") }) })
	Eventually(t, "both paths are there", func() bool {
		m.paths = slices.DeleteFunc(disks(t), func(name string) bool { return slices.Contains(before, name) })
		return len(m.paths) == 2
	})
	v := n.layOut(fs, id)
	m.Mapping = Mapping{Name: "test-" + hash(id)[:8], volume: v, sectors: 32 << 20 / 512}
	numbers := make([]string, 0, 2)
	for _, name := range m.paths {
		raw, err := os.ReadFile(filepath.Join("/sys/block", name, "dev"))
		Must(t, err)
		numbers = append(numbers, string(raw[:len(raw)-1]))
	}
	Run(t, "dmsetup", "create", m.Name, "--uuid", "mpath-"+m.Name, "--table",
		m.table(fmt.Sprintf("multipath 0 0 1 1 round-robin 0 2 1 %s 1000 %s 1000", numbers[0], numbers[1])))
	t.Cleanup(func() { m.Online(); m.end() })
	v.Device = m.Path()
	v.setUp()
	return v, m
}

// Offline takes a path away, as the kernel does when its target is gone. The file
// wants the end of the line.
func (m *Multipath) Offline(path int) {
	m.volume.Node.T.Helper()
	Must(m.volume.Node.T, os.WriteFile(filepath.Join("/sys/block", m.paths[path], "device/state"), []byte("offline\n"), 0))
}

// Online returns all paths back.
func (m *Multipath) Online() {
	t := m.volume.Node.T
	t.Helper()
	for _, name := range m.paths {
		Must(t, os.WriteFile(filepath.Join("/sys/block", name, "device/state"), []byte("running\n"), 0))
		raw, err := os.ReadFile(filepath.Join("/sys/block", name, "dev"))
		Must(t, err)
		Run(t, "dmsetup", "message", m.Name, "0", "reinstate_path", string(raw[:len(raw)-1]))
	}
}
