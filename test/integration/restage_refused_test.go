package integration

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"

	"github.com/csi-addons/node-healer/test/harness"
	"github.com/csi-addons/node-healer/test/harness/csidriver"
)

// disconnected fails the test unless a path answers ENOTCONN: an empty directory that
// answers would take what pods write.
func disconnected(t *testing.T, path string) {
	t.Helper()
	if err := unix.Statfs(path, new(unix.Statfs_t)); err != unix.ENOTCONN { //nolint:errorlint // an errno
		t.Errorf("%s answers %v", path, err)
	}
}

// TestRestageFails has the driver answer with each code, with OK and nothing done, and
// not at all: the staging path is as dead as it was, and once the driver does what it
// should, the volume comes back.
func TestRestageFails(t *testing.T) {
	n, d := restaging(t, "unmount-first", csidriver.Mode{})
	modes := map[string]csidriver.Mode{
		"RestageHadNoEffect":                {Stage: csidriver.NeverBare},
		"NodeStageVolume: UNAVAILABLE":      {Answers: map[string]csidriver.Answer{"NodeStageVolume": {Code: codes.Unavailable, Text: "key " + harness.Canary}}},
		"it names itself other.example.com": {Name: "other.example.com"},
		"GetPluginInfo: UNAVAILABLE":        {Connection: csidriver.Garbage},
	}
	for code := codes.Canceled; code <= codes.DataLoss; code++ {
		switch code {
		case codes.Canceled, codes.DeadlineExceeded, codes.Unavailable:
			continue // they leave it open whether the driver is at work, as the one above
		}
		if !inTurn(int(code), 0, 3) {
			continue
		}
		modes[fmt.Sprint("NodeStageVolume: code ", code)] = csidriver.Mode{Answers: map[string]csidriver.Answer{"NodeStageVolume": {Code: code, Text: "key " + harness.Canary}}}
	}
	volumes := healthyVolumes(n, d, len(modes)+1)
	before, left := d.Table(volumes...), volumes
	fails := func(says string, mode csidriver.Mode) {
		t.Run(says, func(*testing.T) {
			v := left[0]
			left = left[1:]
			d.KillDaemon(v)
			d.Behave(mode)
			said := "NodeStageVolume: "
			if !strings.Contains(says, "code") {
				said = says
			}
			n.Expect("abnormal", d.Request(v), "restage of the staging mount point failed", said)
			disconnected(t, v.Staging)
			disconnected(t, v.MountPoint())
			d.Behave(csidriver.Mode{})
		})
	}
	for says, mode := range modes {
		fails(says, mode)
	}
	n.Stop()
	patient := append(n.Args, "--heal-timeout=20s", "--probe-timeout=3s")
	n.Args = append(slices.Clone(patient), "--driver-timeout=3s")
	n.Start()
	fails("NodeStageVolume: DEADLINE_EXCEEDED", csidriver.Mode{Answers: map[string]csidriver.Answer{"NodeStageVolume": {Hangs: true}}})
	n.Stop()
	n.Args = patient
	n.Start()                   // it forgets whom it leaves alone
	for _, v := range volumes { // last, as some have to wait until the driver no longer counts as at work
		harness.Eventually(t, v.ID+" is healed", func() bool { // on a busy machine not all processes can be examined in time
			return strings.Contains(n.Message(d.Request(v)), "Done: restage of the staging mount point; ")
		})
	}
	d.SameTables(volumes, before)
	if strings.Contains(n.Log.String(), harness.Canary) {
		t.Error("the log has a secret")
	}
}

// TestRestageNeedsAProof refuses what is not known to be dead, not FUSE alone, or not
// switched on, and changes nothing.
func TestRestageNeedsAProof(t *testing.T) {
	for name, tc := range map[string]struct {
		args []string
		does func(t *testing.T, d *harness.CSIDriver, v *harness.Volume)
		says string
	}{
		"off":    {[]string{"--standalone"}, nil, "driver " + harness.Driver + " is not switched on: see docs/restage.md"},
		"others": {[]string{"--standalone", "--restage-driver=other.example.com=unmount-first"}, nil, "is not switched on"},
		// A process that has the connection open may begin to serve it, or hand it over.
		"served": {[]string{"--standalone", "--restage-driver=" + harness.Driver + "=unmount-first"}, aborted, "it is not known whether a process still has the FUSE connection open"},
	} {
		t.Run(name, func(t *testing.T) {
			n := harness.NewNode(t, tc.args...)
			d := n.NewCSIDriver(csidriver.Mode{})
			n.Start()
			v := d.NewVolume("v")
			n.Expect("healthy", d.Request(v))
			if tc.does == nil {
				d.KillDaemon(v)
			} else {
				tc.does(t, d, v)
			}
			dead := n.Table()
			n.Expect("abnormal", d.Request(v), "Refused: ", "restage of the staging mount point", tc.says)
			n.SameTable(dead)
		})
	}
}

// aborted aborts a volume's connection, while its daemon is stopped and keeps it open.
func aborted(t *testing.T, d *harness.CSIDriver, v *harness.Volume) {
	t.Helper()
	pid, err := d.Daemon(v.ID)
	harness.Must(t, err)
	harness.Suspend(t, pid)
	harness.AbortFUSE(t, harness.Layers(t, v.Staging)[0].Dev)
	disconnected(t, v.Staging)
}

// TestRestageTakesNoOtherMount has somebody's mount stand where a second mount of kubelet's
// directory shows the dead one: the umount of the dead mount would take that, too.
func TestRestageTakesNoOtherMount(t *testing.T) {
	n, d := restaging(t, "unmount-first", csidriver.Mode{})
	v := d.NewVolume("v")
	n.Expect("healthy", d.Request(v))
	second := filepath.Join(n.Dir, "second")
	harness.Mkdir(t, second)
	harness.Must(t, unix.Mount(n.Kubelet, second, "", unix.MS_BIND, ""))
	harness.Must(t, unix.Mount("", second, "", unix.MS_SLAVE, "")) // it receives, and what is done on it reaches no other
	there := filepath.Join(second, strings.TrimPrefix(v.Staging, n.Kubelet))
	harness.Must(t, unix.Mount("unrelated", there, "tmpfs", 0, "size=1m"))
	d.KillDaemon(v)
	dead := n.Table()
	for range 2 {
		n.Expect("abnormal", d.Request(v), "restage of the staging mount point", "would also take")
		n.SameTable(dead)
	}
	harness.Must(t, unix.Unmount(there, 0))
	n.Stop()
	n.Start() // it forgets whom it leaves alone
	n.Expect("healed", d.Request(v), "restage of the staging mount point; ")
}
