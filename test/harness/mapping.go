package harness

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// Mapping is a device-mapper device under a volume, on a loop device.
type Mapping struct {
	// Name is what the kernel calls it; its device is /dev/mapper/Name.
	Name   string
	volume *Volume
	// sectors and below are what a table needs: the size, and the device beneath.
	sectors int64
	below   string
}

// NewVolumeOnMapping makes a volume on a mapping that passes everything on.
func (n *Node) NewVolumeOnMapping(fs, id string) (*Volume, *Mapping) {
	n.T.Helper()
	v, below := n.layOutOnLoop(fs, id)
	m := &Mapping{Name: "test-" + hash(id)[:8], volume: v, sectors: imageSize(fs) / 512, below: below}
	m.create("linear " + below + " 0")
	v.Device = m.Path()
	v.setUp()
	return v, m
}

// NewVolumeOnLUKS makes a volume on a LUKS device, which lies on the mapping.
func (n *Node) NewVolumeOnLUKS(fs, id string) (*Volume, *Mapping) {
	n.T.Helper()
	v, below := n.layOutOnLoop(fs, id)
	NeedsPrograms(n.T, "cryptsetup")
	m := &Mapping{Name: "test-" + hash(id)[:8], volume: v, sectors: imageSize(fs)/512 + luksHeader/512, below: below}
	m.create("linear " + below + " 0")
	key := filepath.Join(n.Dir, "key")
	Must(n.T, os.WriteFile(key, []byte("secret"), 0o600))
	// As few rounds as it allows: the processor may be an emulated one.
	Run(n.T, "cryptsetup", "luksFormat", "--batch-mode", "--pbkdf=pbkdf2", "--pbkdf-force-iterations=1000", m.Path(), key)
	upper := m.Name + "-luks"
	Run(n.T, "cryptsetup", "open", "--key-file", key, m.Path(), upper)
	n.T.Cleanup(func() {
		m.letGo()
		Eventually(n.T, "the LUKS device is gone", func() bool { return exec.Command("cryptsetup", "close", upper).Run() == nil })
	})
	v.Device = "/dev/mapper/" + upper
	v.setUp()
	return v, m
}

// luksHeader is what LUKS takes for itself.
const luksHeader = 16 << 20

// layOutOnLoop makes a volume with a loop device, which is not the volume's own
// device, but below that.
func (n *Node) layOutOnLoop(fs, id string) (v *Volume, below string) {
	n.T.Helper()
	NeedsVM(n.T, "device-mapper and network block devices")
	// Only the library makes the device nodes.
	n.T.Setenv("DM_DISABLE_UDEV", "1")
	v = n.layOut(fs, id)
	v.newImage()
	Must(n.T, os.Truncate(v.Image, imageSize(fs)+luksHeader))
	v.Attach()
	n.T.Cleanup(v.Detach)
	return v, v.Device
}

// Path is the mapping's device.
func (m *Mapping) Path() string { return "/dev/mapper/" + m.Name }

// create makes the mapping until the end of the test.
func (m *Mapping) create(target string) {
	m.volume.Node.T.Helper()
	Run(m.volume.Node.T, "dmsetup", "create", m.Name, "--table", m.table(target))
	m.volume.Node.T.Cleanup(m.end)
}

func (m *Mapping) table(target string) string { return fmt.Sprintf("0 %d %s", m.sectors, target) }

// end takes the mapping away, whatever state it is in.
func (m *Mapping) end() {
	m.letGo()
	Eventually(m.volume.Node.T, "the mapping is gone", func() bool {
		return exec.Command("dmsetup", "remove", m.Name).Run() == nil
	})
}

// letGo unmounts the volume. What waits for the mapping goes on before that.
func (m *Mapping) letGo() {
	_ = exec.Command("dmsetup", "resume", m.Name).Run()
	unmountBeneath(m.volume.Node.T, m.volume.Node.Dir)
}

// Fail has all reads and writes, or only those of one kind, answered with an error.
func (m *Mapping) Fail(kind ...string) {
	m.volume.Node.T.Helper()
	if len(kind) == 0 {
		m.replace("error")
		return
	}
	// Down for ever: up for 0 s, down for so many that no test sees their end.
	m.replace(fmt.Sprintf("flakey %s 0 0 10000 %d %s", m.below, len(kind), strings.Join(kind, " ")))
}

// Mend has everything passed on again.
func (m *Mapping) Mend() {
	m.volume.Node.T.Helper()
	m.replace("linear " + m.below + " 0")
}

// replace returns the mapping another table. --noflush: what is under way meets the
// new one.
func (m *Mapping) replace(target string) {
	t := m.volume.Node.T
	t.Helper()
	Run(t, "dmsetup", "load", m.Name, "--table", m.table(target))
	Run(t, "dmsetup", "suspend", "--noflush", "--nolockfs", m.Name)
	Run(t, "dmsetup", "resume", m.Name)
}

// Suspend has everything wait that goes to the mapping, and Resume go on.
func (m *Mapping) Suspend() {
	m.volume.Node.T.Helper()
	Run(m.volume.Node.T, "dmsetup", "suspend", "--nolockfs", m.Name)
}

// Resume is the end of Suspend.
func (m *Mapping) Resume() {
	m.volume.Node.T.Helper()
	Run(m.volume.Node.T, "dmsetup", "resume", m.Name)
}

// NBD is a network block device under a volume, with its server.
type NBD struct {
	volume *Volume
	server *exec.Cmd
	ended  <-chan struct{}
}

// NewVolumeOnNBD makes a volume on a network block device.
func (n *Node) NewVolumeOnNBD(fs, id string) (*Volume, *NBD) {
	n.T.Helper()
	t := n.T
	NeedsVM(t, "network block devices")
	NeedsPrograms(t, "nbd-server", "nbd-client")
	Run(t, "modprobe", "nbd")
	v := n.layOut(fs, id)
	v.newImage()
	d := &NBD{volume: v}
	config := filepath.Join(n.Dir, "nbd.conf")
	socket := filepath.Join(n.Dir, "nbd.sock")
	Must(t, os.WriteFile(config, []byte("[generic]\nunixsock = "+socket+"\nlistenaddr = 127.0.0.1\n[disk]\nexportname = "+v.Image+"\n"), 0o600))
	d.server = exec.Command("nbd-server", "--dont-fork", "--config-file", config)
	d.ended = startDaemon(t, d.server)
	v.Device = "/dev/nbd0"
	t.Cleanup(func() {
		d.Kill()
		unmountBeneath(t, n.Dir)
		_ = exec.Command("nbd-client", "-disconnect", v.Device).Run()
	})
	Eventually(t, "the server listens", func() bool {
		_, err := os.Stat(socket)
		return err == nil
	})
	Run(t, "nbd-client", "-unix", socket, v.Device, "-name", "disk", "-block-size", "512")
	Eventually(t, "the disk is there", func() bool {
		f, err := os.Open(v.Device)
		if err != nil {
			return false
		}
		defer f.Close()
		_, err = f.Read(make([]byte, 512))
		return err == nil
	})
	v.setUp()
	return v, d
}

// Kill ends the server, with those of its processes that serve the connection.
func (d *NBD) Kill() {
	for _, pid := range append(childrenOf(d.server.Process.Pid), d.server.Process.Pid) {
		_ = unix.Kill(pid, unix.SIGKILL)
	}
	<-d.ended
}

// disks names the SCSI disks.
func disks(t testing.TB) []string {
	t.Helper()
	found, err := filepath.Glob("/sys/block/sd*")
	Must(t, err)
	for i := range found {
		found[i] = filepath.Base(found[i])
	}
	return found
}

func modprobeRemove(module string) bool { return exec.Command("modprobe", "-r", module).Run() == nil }
