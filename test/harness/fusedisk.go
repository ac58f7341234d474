package harness

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/csi-addons/node-healer/pkg/facts"
	"github.com/csi-addons/node-healer/test/harness/diskfs"
	"github.com/csi-addons/node-healer/test/harness/faultfs"
)

// FUSEDisk is what a FUSE driver has behind a volume: a directory with the data,
// and a daemon that serves it at the staging path. The data outlives the daemon,
// as it does where it lies on servers.
type FUSEDisk struct {
	// Backing is the directory with the data.
	Backing string

	volume *Volume
	config FUSEConfig
	daemon *exec.Cmd
	ended  <-chan struct{}
	// mounts are the devices of all superblocks that there were.
	mounts []facts.Dev
}

// FUSEConfig says how a daemon serves.
type FUSEConfig struct {
	// Source is what the mount table calls it. Empty: a name that tells which
	// volume it is, as those of real drivers do.
	Source string
	// Valid is how long the kernel may believe names and attributes.
	Valid time.Duration
}

// NewFUSEDisk makes a volume that a daemon serves, staged, filled and published.
func (n *Node) NewFUSEDisk(id string, c FUSEConfig) (*Volume, *FUSEDisk) {
	n.T.Helper()
	v, d := n.newFUSEDisk(id, c)
	v.Publish(PodUID)
	return v, d
}

// newFUSEDisk makes a volume that is not yet published.
func (n *Node) newFUSEDisk(id string, c FUSEConfig) (*Volume, *FUSEDisk) {
	n.T.Helper()
	if c.Source == "" {
		c.Source = "diskfs:" + id
	}
	v := n.layOut("fuse", id)
	d := &FUSEDisk{Backing: filepath.Join(n.Dir, "disk-"+hash(id)[:8]), volume: v, config: c}
	Mkdir(n.T, d.Backing)
	n.T.Cleanup(d.end)
	d.stage()
	v.fill()
	return v, d
}

// Kill ends the daemon, and with it the connection.
func (d *FUSEDisk) Kill() {
	d.volume.Node.T.Helper()
	_ = d.daemon.Process.Kill() // it may have been killed before
	<-d.ended
}

// Freeze stops the daemon (SIGSTOP): requests to it wait.
func (d *FUSEDisk) Freeze() {
	d.volume.Node.T.Helper()
	Suspend(d.volume.Node.T, d.daemon.Process.Pid)
}

// Thaw lets the daemon go on.
func (d *FUSEDisk) Thaw() {
	d.volume.Node.T.Helper()
	Must(d.volume.Node.T, d.daemon.Process.Signal(unix.SIGCONT))
}

// Restage does what a driver does that finds its daemon dead: it takes the dead
// mount off the staging path, however many layers there are, and stages again.
func (d *FUSEDisk) Restage() {
	d.volume.Node.T.Helper()
	d.Unstage()
	d.RestageOver()
}

// RestageOver is Restage of a driver that mounts on top of what is there. Where
// the staged mount is shared, that lands on the targets, too.
func (d *FUSEDisk) RestageOver() {
	d.volume.Node.T.Helper()
	d.Kill()
	d.stage()
}

// Unstage takes everything off the staging path, lazily.
func (d *FUSEDisk) Unstage() {
	d.volume.Node.T.Helper()
	d.volume.unstage()
}

// Dev is the device of what is staged now.
func (d *FUSEDisk) Dev() facts.Dev { return d.mounts[len(d.mounts)-1] }

// SameTable is the node's, for a table of before the daemon was restarted: a new
// one has a device number of its own.
func (d *FUSEDisk) SameTable(before []string) {
	d.volume.Node.T.Helper()
	d.volume.Node.SameTable(d.Renumbered(before))
}

// Renumbered returns a table of before as it is to be with what is staged now.
func (d *FUSEDisk) Renumbered(table []string) []string {
	now := " " + d.Dev().String() + " "
	renumbered := make([]string, len(table))
	for i, line := range table {
		for _, was := range d.mounts {
			if !strings.Contains(line, " "+d.config.Source+" ") {
				break // the number may be another daemon's by now
			}
			line = strings.ReplaceAll(line, " "+was.String()+" ", now)
		}
		renumbered[i] = line
	}
	return renumbered
}

// Source is what the mount table calls it.
func (d *FUSEDisk) Source() string { return d.config.Source }

// Rename has the next daemon's mount called something else.
func (d *FUSEDisk) Rename(source string) { d.config.Source = source }

// stage mounts the filesystem at the staging path and starts a daemon for it.
func (d *FUSEDisk) stage() {
	v, t := d.volume, d.volume.Node.T
	t.Helper()
	// The mount is made here and the daemon gets the descriptor: so it is there
	// when this returns.
	fd, err := unix.Open("/dev/fuse", unix.O_RDWR|unix.O_CLOEXEC, 0)
	Must(t, err)
	dev := os.NewFile(uintptr(fd), "/dev/fuse")
	defer dev.Close() // the last one who has it open is then the daemon
	below := Layers(t, v.Staging)
	options := fmt.Sprintf("fd=%d,rootmode=40000,user_id=0,group_id=0,allow_other", fd)
	Must(t, unix.Mount(d.config.Source, v.Staging, "fuse.diskfs", unix.MS_NOSUID|unix.MS_NODEV, options))
	d.mounts = append(d.mounts, newLayer(t, v.Staging, below).Dev)
	raw, err := json.Marshal(diskfs.Config{Backing: d.Backing, Valid: d.config.Valid})
	Must(t, err)
	daemon := exec.Command(faultfs.Program)
	daemon.Env = append(os.Environ(), diskfs.Env+"="+string(raw))
	daemon.ExtraFiles = []*os.File{dev} // see package diskfs
	daemon.Stderr = os.Stderr
	d.daemon, d.ended = daemon, startDaemon(t, daemon)
	// The kernel keeps questions until the daemon reads them, and answers with
	// an error when there is none.
	_ = dev.Close()
	Must(t, unix.Statfs(v.Staging, &unix.Statfs_t{}))
}

// end leaves nothing behind, whatever state the daemon is in.
func (d *FUSEDisk) end() {
	if d.ended != nil {
		endDaemon(d.daemon, d.ended, d.Dev())
	}
}
