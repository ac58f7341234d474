package harness

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/csi-addons/node-healer/pkg/facts"
)

// Daemon is the FUSE daemon of a driver, a program of the distribution, which
// serves a volume at its staging path. FUSEDisk is the one of the tests' own,
// where a test needs to say how it serves.
type Daemon struct {
	volume  *Volume
	config  DaemonConfig
	dir     string
	process *exec.Cmd
	ended   <-chan struct{}
	dev     facts.Dev // of what is staged now
}

// DaemonConfig says how a daemon is started. In all command lines $DIR is a
// directory of the volume's own, $DIR/data an empty one in it, and $STAGING the
// staging path.
type DaemonConfig struct {
	// Needs are the programs without which it does not run.
	Needs []string
	// Prepare are the commands that make what it serves.
	Prepare [][]string
	// Serve is the command that mounts the volume and serves it, in the foreground.
	Serve []string
	// Ready is what the daemon says when it serves. If it is empty, that is as soon
	// as it has mounted the volume.
	Ready string
	// ReadOnly is true where nothing can be written through the mount: the data is
	// in $DIR/data when Prepare begins.
	ReadOnly bool
}

// NewDaemon makes a volume that a daemon serves, staged, filled and published.
func (n *Node) NewDaemon(id string, c DaemonConfig) (*Volume, *Daemon) {
	n.T.Helper()
	NeedsPrograms(n.T, c.Needs...)
	v := n.layOut("fuse", id)
	d := &Daemon{volume: v, config: c, dir: filepath.Join(n.Dir, "daemon-"+hash(id)[:8])}
	data := filepath.Join(d.dir, "data")
	Mkdir(n.T, data)
	if c.ReadOnly {
		v.fillAt(data)
	}
	for _, command := range c.Prepare {
		command = d.expand(command)
		Run(n.T, command[0], command[1:]...)
	}
	n.T.Cleanup(d.end)
	d.stage()
	if !c.ReadOnly {
		v.fill()
	}
	v.Publish(PodUID)
	return v, d
}

// Kill ends the daemon, and with it the connection.
func (d *Daemon) Kill() {
	t := d.volume.Node.T
	t.Helper()
	_ = d.process.Process.Kill() // it may have ended before
	// Not with the process alone if a child of it has the connection open, too.
	Eventually(t, "the connection to the daemon ends", func() bool {
		select {
		case <-d.ended:
		default:
			return false
		}
		return errors.Is(unix.Statfs(d.volume.Staging, &unix.Statfs_t{}), unix.ENOTCONN)
	})
}

// PID is the daemon's process.
func (d *Daemon) PID() int { return d.process.Process.Pid }

// Signal sends the daemon a signal.
func (d *Daemon) Signal(s syscall.Signal) {
	d.volume.Node.T.Helper()
	Must(d.volume.Node.T, d.process.Process.Signal(s))
}

// Restage does what a driver does that finds its daemon dead: it takes the dead
// mount off the staging path and starts the daemon again.
func (d *Daemon) Restage() {
	d.volume.Node.T.Helper()
	d.volume.unstage()
	d.stage()
}

// Dev is the device of what is staged now.
func (d *Daemon) Dev() facts.Dev { return d.dev }

// Table is the node's, with a word for the device of what is staged now: a mount
// of the daemon that runs reads the same before and after a restart.
func (d *Daemon) Table() []string {
	d.volume.Node.T.Helper()
	table := d.volume.Node.Table()
	for i := range table {
		table[i] = strings.ReplaceAll(table[i], " "+d.dev.String()+" ", " staged ")
	}
	return table
}

// SameTable fails the test when the node's mount table is not as it was.
func (d *Daemon) SameTable(before []string) {
	t := d.volume.Node.T
	t.Helper()
	if after := d.Table(); !slices.Equal(before, after) {
		t.Fatalf("the mount table changed\nbefore:\n%s\nafter:\n%s", strings.Join(before, "\n"), strings.Join(after, "\n"))
	}
}

// stage starts the daemon and waits until it serves.
func (d *Daemon) stage() {
	v, t := d.volume, d.volume.Node.T
	t.Helper()
	log, err := os.Create(filepath.Join(d.dir, "log"))
	Must(t, err)
	defer log.Close()
	command := d.expand(d.config.Serve)
	d.process = exec.Command(command[0], command[1:]...)
	d.process.Stdout, d.process.Stderr = log, log
	d.dev = facts.Dev{}
	d.ended = startDaemon(t, d.process)
	Eventually(t, "the daemon serves", func() bool {
		said := LogFile(log.Name()).String()
		select {
		case <-d.ended:
			t.Fatalf("the daemon ended with %v\n%s", d.process.ProcessState, said)
		default:
		}
		staged := Layers(t, v.Staging)
		if len(staged) == 0 {
			return false
		}
		d.dev = staged[0].Dev
		return strings.Contains(said, d.config.Ready)
	})
	// The kernel keeps the question until the daemon reads it.
	Must(t, unix.Statfs(v.Staging, &unix.Statfs_t{}))
}

// end leaves nothing behind, whatever state the daemon is in.
func (d *Daemon) end() {
	if d.ended != nil {
		endDaemon(d.process, d.ended, d.dev)
	}
}

func (d *Daemon) expand(command []string) []string {
	expanded := make([]string, len(command))
	for i, arg := range command {
		expanded[i] = os.Expand(arg, func(name string) string {
			switch name {
			case "DIR":
				return d.dir
			case "STAGING":
				return d.volume.Staging
			}
			d.volume.Node.T.Fatalf("$%s in %q", name, command)
			return ""
		})
	}
	return expanded
}

// startDaemon starts a process that does not outlive the tests.
func startDaemon(t testing.TB, daemon *exec.Cmd) (ended <-chan struct{}) {
	t.Helper()
	daemon.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	Must(t, daemon.Start())
	end := make(chan struct{})
	go func() {
		defer close(end)
		_ = daemon.Wait()
	}()
	return end
}

// endDaemon ends a daemon that startDaemon has started, and before it the
// connection: waiting requests fail, and their processes can be killed.
func endDaemon(daemon *exec.Cmd, ended <-chan struct{}, dev facts.Dev) {
	select {
	case <-ended: // its number may be another connection's by now
	default:
		_ = abortFUSE(dev)
		_ = daemon.Process.Kill()
		<-ended
	}
}

// AbortFUSE ends a FUSE connection, whose daemon goes on.
func AbortFUSE(t testing.TB, dev facts.Dev) {
	t.Helper()
	Must(t, abortFUSE(dev))
}

func abortFUSE(dev facts.Dev) error {
	return os.WriteFile(filepath.Join(fusectl, fmt.Sprint(dev.Minor), "abort"), []byte("1"), 0)
}

// fusectl has a directory for each FUSE connection.
const fusectl = "/sys/fs/fuse/connections"
