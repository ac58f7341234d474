package integration

import (
	"fmt"
	"os/exec"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/csi-addons/node-healer/test/harness"
)

// daemons are FUSE daemons of Debian that CSI drivers start, or the like of them.
var daemons = map[string]struct {
	harness.DaemonConfig
	// noInodes and noBlocks are true where statfs says that none is free, always.
	noInodes, noBlocks bool
}{
	"rclone": {DaemonConfig: harness.DaemonConfig{
		Needs: []string{"rclone", "fusermount"},
		Serve: []string{"rclone", "mount", "--config=/dev/null", "--allow-other", "$DIR/data", "$STAGING"},
	}, noInodes: true},
	// Its server is started as ssh would start it at the other end.
	"sshfs": {DaemonConfig: harness.DaemonConfig{
		Needs: []string{"sshfs", sftpServer},
		Serve: []string{"sshfs", "-f", "-o", "allow_other", "-o", "ssh_command=sh -c " + sftpServer, "server.example.com:$DIR/data", "$STAGING"},
	}},
	"bindfs": {DaemonConfig: harness.DaemonConfig{
		Needs: []string{"bindfs"},
		Serve: []string{"bindfs", "-f", "-o", "allow_other", "$DIR/data", "$STAGING"},
	}},
	"mergerfs": {DaemonConfig: harness.DaemonConfig{
		Needs:   []string{"mergerfs"},
		Prepare: [][]string{{"mkdir", "$DIR/more"}},
		Serve:   []string{"mergerfs", "-f", "-o", "allow_other,minfreespace=0", "$DIR/data:$DIR/more", "$STAGING"},
	}},
	"gocryptfs": {DaemonConfig: harness.DaemonConfig{
		Needs:   []string{"gocryptfs", "fusermount"},
		Prepare: [][]string{{"gocryptfs", "-init", "-q", "-scryptn=10", "-extpass=echo password", "$DIR/data"}},
		Serve:   []string{"gocryptfs", "-fg", "-nosyslog", "-allow_other", "-extpass=echo password", "$DIR/data", "$STAGING"},
		// Until then it opens a file in its own mount, and does not answer a mkdir that
		// comes before: each waits for the other.
		Ready: "Filesystem mounted and ready.",
	}},
	"squashfuse":            {DaemonConfig: squashfuse("allow_other"), noInodes: true, noBlocks: true},
	"squashfuse, read-only": {DaemonConfig: squashfuse("allow_other,ro"), noInodes: true, noBlocks: true},
}

// squashfuse serves an image. By itself the mount is writable as far as the mount
// table says, and the source of each is "squashfuse".
func squashfuse(options string) harness.DaemonConfig {
	return harness.DaemonConfig{
		Needs:    []string{"squashfuse", "mksquashfs"},
		Prepare:  [][]string{{"mksquashfs", "$DIR/data", "$DIR/image", "-quiet", "-no-progress"}},
		Serve:    []string{"squashfuse", "-f", "-o", options, "$DIR/image", "$STAGING"},
		ReadOnly: true,
	}
}

// sftpServer is where Debian has it.
const sftpServer = "/usr/lib/openssh/sftp-server"

// TestDaemons kills daemons of real drivers and mounts their volumes again, as the
// driver does. After one call the process in the container has its data again, and
// another volume of such a daemon is unchanged.
func TestDaemons(t *testing.T) {
	for name, config := range daemons {
		t.Run(name, func(t *testing.T) {
			n := harness.NewNode(t).Start()
			v, d := n.NewDaemon("served", config.DaemonConfig)
			var st unix.Statfs_t
			harness.Must(t, unix.Statfs(v.MountPoint(), &st))
			if (st.Ffree == 0) != config.noInodes || (st.Bavail == 0) != config.noBlocks {
				t.Fatalf("the test shows something else, statfs says %+v", st)
			}
			another, _ := n.NewDaemon("neighbour", config.DaemonConfig)
			next := seeNeighbour(n, another)
			c := n.StartContainer(harness.ContainerSpec{
				Mounts: []harness.ContainerMount{{At: "/data", Source: v.MountPoint()}},
				Loop:   &harness.Loop{Read: "/data/a"},
			})
			n.Expect("healthy", v.Request())
			table, containerTable, sum := d.Table(), c.Table(), v.Sum(v.MountPoint())
			var dying []string
			works := func() {
				t.Helper()
				if got := c.AwaitTurns(); got.Reads != got.Turns || c.Starts() != 1 {
					t.Errorf("the loop in the container, started %d times, comes by this: %+v, and has met %q", c.Starts(), got, c.Errors())
				}
				onlyDead(t, c, dying...)
				d.SameTable(table)
				c.SameTable(containerTable)
				if data := c.MountsAt("/data"); len(data) != 1 || data[0].Dev != d.Dev() {
					t.Errorf("the container has %v, and staged is %s", data, d.Dev())
				}
				if v.Sum(v.MountPoint()) != sum || v.Sum(v.Staging) != sum {
					t.Error("the data differs")
				}
				next.untouched()
			}
			for range 2 {
				d.Kill()
				c.AwaitTurns()
				// Of a read(2) that failed in a file that was open the shell says nothing.
				dying = c.Errors()
				n.Expect("abnormal", v.Request(), "Disconnected")
				d.SameTable(table)
				d.Restage()
				n.Expect("healed", v.Request(), "Disconnected", "replace-in-container", c.ID()[:12])
				works()
				n.Expect("healthy", v.Request())
				works()
			}
			if !config.ReadOnly {
				if out, err := c.Exec("sh", "-c", "echo written >/data/w && cat /data/w && /bin/busybox rm /data/w"); err != nil || out != "written\n" {
					t.Errorf("the container writes: %q, %v", out, err)
				}
			}
		})
	}
}

// TestDaemonsThatDoNotAnswer suspends daemons of real drivers, and the server of one, and
// ends that server: each is named for what it is, nothing is changed, and what comes back
// is healthy.
func TestDaemonsThatDoNotAnswer(t *testing.T) {
	harness.NeedsKernel(t, harness.KernelIs(6, 16), "which daemon serves a FUSE connection")
	for _, name := range []string{"rclone", "sshfs"} {
		t.Run(name, func(t *testing.T) {
			n := harness.NewNode(t, "--probe-timeout=3s").Start()
			another, _ := n.NewDaemon("neighbour", daemons[name].DaemonConfig)
			next := seeNeighbour(n, another)
			v, d := n.NewDaemon("served", daemons[name].DaemonConfig)
			n.Expect("healthy", v.Request())
			table, daemon := n.Table(), fmt.Sprintf("process %d %s ", d.PID(), name)
			harness.Suspend(t, d.PID())
			n.Expect("abnormal", v.Request(), "NotResponding", "DaemonStopped", daemon, "kill -CONT")
			d.Signal(unix.SIGCONT)
			n.Expect("healthy", v.Request())
			if name == "sshfs" {
				server := newest(t, sftpServer)
				harness.Suspend(t, server)
				n.Expect("abnormal", v.Request(), "NotResponding", "DaemonHung", daemon)
				harness.Must(t, unix.Kill(server, unix.SIGCONT))
				harness.Eventually(t, "the probe that waited has ended", func() bool {
					return strings.HasPrefix(n.Message(v.Request()), "healthy:")
				})
				n.SameTable(table)
				// A moment later sshfs unmounts the staging path, and ends.
				harness.Must(t, unix.Kill(server, unix.SIGKILL))
				harness.Eventually(t, "the volume is abnormal", func() bool {
					return strings.HasPrefix(n.Message(v.Request()), "abnormal:")
				})
			} else {
				n.SameTable(table)
			}
			next.untouched()
		})
	}
}

// newest returns the process of a program that was started last.
func newest(t *testing.T, program string) int {
	t.Helper()
	out, err := exec.Command("pgrep", "--newest", "--full", "^"+program).Output()
	harness.Must(t, err)
	pid, err := strconv.Atoi(strings.TrimSpace(string(out)))
	harness.Must(t, err)
	return pid
}
