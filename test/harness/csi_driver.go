package harness

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"

	"github.com/csi-addons/node-healer/pkg/api/healerpb"
	"github.com/csi-addons/node-healer/test/harness/csidriver"
)

// CSIDriver is the tests' CSI driver on a node: a plugin, and a daemon for each volume,
// in processes of their own.
type CSIDriver struct {
	csidriver.Driver
	node   *Node
	plugin *exec.Cmd
	ended  <-chan struct{}
	// groups are the process groups of all plugins, with their daemons.
	groups []int
	// cgroup is that of the driver's pod, empty where it has none.
	cgroup string
}

// DriverPod is the pod of NewCSIDriverInPod, DriverContainer the ID of its container.
var (
	DriverPod       = podUID(8)
	DriverContainer = hash("driver")
)

// NewCSIDriverInPod starts the driver in the cgroup of a pod of its own, as on a node: so
// are its daemons, which end with it.
func (n *Node) NewCSIDriverInPod(m csidriver.Mode) *CSIDriver {
	n.T.Helper()
	return n.newCSIDriver(m, newPodCgroup(n.T, DriverPod, DriverContainer))
}

// NewCSIDriver starts the driver of the node's volumes.
func (n *Node) NewCSIDriver(m csidriver.Mode) *CSIDriver {
	n.T.Helper()
	return n.newCSIDriver(m, "")
}

func (n *Node) newCSIDriver(m csidriver.Mode, cgroup string) *CSIDriver {
	n.T.Helper()
	d := &CSIDriver{node: n, cgroup: cgroup, Driver: csidriver.Driver{Name: Driver, Kubelet: n.Kubelet, Volumes: filepath.Join(n.Dir, "volumes"), NodeID: "node-1"}}
	if len(d.Socket()) > maxSocketPath {
		n.T.Fatalf("%s is no path for a socket: the name of the test is too long", d.Socket())
	}
	n.T.Cleanup(func() {
		for _, group := range d.groups {
			_ = unix.Kill(-group, unix.SIGKILL)
		}
		d.wait()
	})
	d.Behave(m)
	d.Start()
	return d
}

// maxSocketPath is what unix(7) leaves of sun_path.
const maxSocketPath = 107

// Behave sets how the driver behaves from now on.
func (d *CSIDriver) Behave(m csidriver.Mode) {
	d.node.T.Helper()
	Must(d.node.T, d.Driver.Behave(m))
}

// Start starts the plugin and waits until it answers.
func (d *CSIDriver) Start() {
	t := d.node.T
	t.Helper()
	log, err := os.OpenFile(filepath.Join(d.node.Dir, "driver-log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	Must(t, err)
	defer log.Close()
	d.plugin = d.Command()
	d.plugin.Stdout, d.plugin.Stderr = log, log
	d.plugin.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	Must(t, d.plugin.Start())
	if d.cgroup != "" { // before it has a daemon, or it may be born outside
		join(t, d.cgroup, d.plugin.Process.Pid)
	}
	d.groups = append(d.groups, d.plugin.Process.Pid)
	ended := make(chan struct{})
	go func() { _ = d.plugin.Wait(); close(ended) }()
	d.ended = ended
	Eventually(t, "the driver listens", func() bool { _, err := os.Stat(d.Socket()); return err == nil })
	d.Call(func(ctx context.Context, conn *grpc.ClientConn) error {
		_, err := csi.NewIdentityClient(conn).Probe(ctx, &csi.ProbeRequest{}, grpc.WaitForReady(true))
		return err
	})
}

// Stop kills the plugin, and with it the daemons. Nobody listens at its sockets any more.
func (d *CSIDriver) Stop() {
	_ = d.plugin.Process.Kill()
	d.wait()
}

// Terminate is Stop as kubelet ends a driver's pod: the sockets are gone, too, until Start.
func (d *CSIDriver) Terminate() {
	d.node.T.Helper()
	d.Stop()
	for _, socket := range []string{d.Socket(), d.AddonsSocket(), d.Registry()} {
		if err := os.Remove(socket); !errors.Is(err, os.ErrNotExist) {
			Must(d.node.T, err)
		}
	}
}

// AwaitDead waits until what is staged of volumes is dead: a daemon that ends with its pod
// ends a moment after it.
func (d *CSIDriver) AwaitDead(volumes ...*Volume) {
	d.node.T.Helper()
	for _, v := range volumes {
		Eventually(d.node.T, "the connection to the daemon ends", func() bool {
			return errors.Is(unix.Statfs(v.Staging, &unix.Statfs_t{}), unix.ENOTCONN)
		})
	}
}

func (d *CSIDriver) wait() {
	if d.ended != nil {
		<-d.ended
	}
}

// Call calls the driver, as kubelet does.
func (d *CSIDriver) Call(call func(context.Context, *grpc.ClientConn) error) {
	d.node.T.Helper()
	Must(d.node.T, d.Try(call))
}

// Try is Call, with the error for the caller.
func (d *CSIDriver) Try(call func(context.Context, *grpc.ClientConn) error) error {
	conn, err := d.Dial()
	if err != nil {
		return err
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(context.Background(), Patience)
	defer cancel()
	return call(ctx, conn)
}

// NewVolume makes a volume that the driver stages and publishes, with data in it.
func (d *CSIDriver) NewVolume(id string) *Volume {
	d.node.T.Helper()
	return d.newVolume("fuse", id)
}

// NewDisk is NewVolume for one that is an ext4 on a disk.
func (d *CSIDriver) NewDisk(id string) *Volume {
	d.node.T.Helper()
	image := d.Image(id)
	Mkdir(d.node.T, filepath.Dir(image))
	Must(d.node.T, os.WriteFile(image, nil, 0o600))
	Must(d.node.T, os.Truncate(image, imageSize("ext4")))
	Run(d.node.T, "mkfs.ext4", "-q", image)
	return d.newVolume("ext4", id)
}

func (d *CSIDriver) newVolume(fs, id string) *Volume {
	d.node.T.Helper()
	v := d.node.layOut(fs, id)
	d.Call(d.Stages(v))
	v.fill()
	v.Publish(PodUID)
	return v
}

// NewPublishedVolume makes a volume that the driver, in the mode PublishOnly, mounts at the target
// itself: that is where it is staged as well, for a test.
func (d *CSIDriver) NewPublishedVolume(id string, inline bool) *Volume {
	d.node.T.Helper()
	v := &Volume{Node: d.node, ID: id, FS: "fuse", PV: "pv-" + hash(id)[:8], Inline: inline}
	v.Staging = v.MountPoint()
	v.writeVolData(filepath.Dir(v.Staging))
	d.Call(d.Publishes(v))
	v.fill()
	return v
}

// Publishes is kubelet's call to publish a volume that is not staged.
func (d *CSIDriver) Publishes(v *Volume) func(context.Context, *grpc.ClientConn) error {
	return func(ctx context.Context, conn *grpc.ClientConn) error {
		_, err := csi.NewNodeClient(conn).NodePublishVolume(ctx, &csi.NodePublishVolumeRequest{
			VolumeId: v.ID, TargetPath: v.MountPoint(), VolumeCapability: csidriver.Capability(),
		})
		return err
	}
}

// Stages is kubelet's call to stage a volume.
func (d *CSIDriver) Stages(v *Volume) func(context.Context, *grpc.ClientConn) error {
	return func(ctx context.Context, conn *grpc.ClientConn) error {
		_, err := csi.NewNodeClient(conn).NodeStageVolume(ctx, &csi.NodeStageVolumeRequest{
			VolumeId: v.ID, StagingTargetPath: v.Staging, VolumeCapability: csidriver.Capability(),
			Secrets: map[string]string{"userKey": Canary}, VolumeContext: map[string]string{"secretish": Canary},
		})
		return err
	}
}

// EndDaemon kills the daemon of a volume, for a driver that may be quicker than the test.
func (d *CSIDriver) EndDaemon(v *Volume) {
	d.node.T.Helper()
	pid, err := d.Daemon(v.ID)
	Must(d.node.T, err)
	Must(d.node.T, unix.Kill(pid, unix.SIGKILL))
}

// KillDaemon kills the daemon of a volume, as the kernel does that has no memory left,
// and waits until the volume is dead.
func (d *CSIDriver) KillDaemon(v *Volume) {
	t := d.node.T
	t.Helper()
	d.EndDaemon(v)
	d.AwaitDead(v)
}

// Request names the volume with how it is used, as the CSI-Addons controller does.
func (d *CSIDriver) Request(v *Volume) *healerpb.NodeHealerRequest {
	req := v.Request()
	req.VolumeCapability = csidriver.Capability()
	return req
}

// Table is the node's, with a word for the device of what is staged of each volume now: volumes
// that were staged anew read the same as before.
func (d *CSIDriver) Table(volumes ...*Volume) []string {
	d.node.T.Helper()
	table := d.node.Table()
	for _, v := range volumes {
		staged := Layers(d.node.T, v.Staging)
		for i := range table {
			if len(staged) > 0 {
				table[i] = strings.ReplaceAll(table[i], " "+staged[0].Dev.String()+" ", " staged of "+v.ID+" ")
			}
		}
	}
	slices.Sort(table)
	return table
}

// SameTable fails the test when the node's mount table is not as Table had it.
func (d *CSIDriver) SameTable(v *Volume, before []string) {
	d.node.T.Helper()
	d.SameTables([]*Volume{v}, before)
}

// SameTables is SameTable for several volumes.
func (d *CSIDriver) SameTables(volumes []*Volume, before []string) {
	d.node.T.Helper()
	if after := d.Table(volumes...); !slices.Equal(before, after) {
		d.node.T.Fatalf("the mount table changed\nbefore:\n%s\nafter:\n%s", strings.Join(before, "\n"), strings.Join(after, "\n"))
	}
}

// TearDown does what kubelet does with a volume in the end: it unpublishes and unstages it
// until nothing is mounted, and removes the directories, which have to be empty. data is
// the checksum of what the volume had.
func (d *CSIDriver) TearDown(v *Volume, data string) {
	t := d.node.T
	t.Helper()
	for _, pod := range []string{PodUID, OtherPod} {
		at := v.MountPointOf(pod)
		d.untilGone(at, func(ctx context.Context, conn *grpc.ClientConn) error {
			_, err := csi.NewNodeClient(conn).NodeUnpublishVolume(ctx, &csi.NodeUnpublishVolumeRequest{VolumeId: v.ID, TargetPath: at})
			return err
		})
	}
	d.untilGone(v.Staging, func(ctx context.Context, conn *grpc.ClientConn) error {
		_, err := csi.NewNodeClient(conn).NodeUnstageVolume(ctx, &csi.NodeUnstageVolumeRequest{VolumeId: v.ID, StagingTargetPath: v.Staging})
		return err
	})
	if err := os.Remove(v.Staging); err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Error("the staging directory: ", err)
	}
	if now := v.Sum(d.Data(v.ID)); now != data {
		t.Error("the volume's data is another one")
	}
}

// untilGone calls until nothing is mounted at a path, a few times.
func (d *CSIDriver) untilGone(at string, call func(context.Context, *grpc.ClientConn) error) {
	d.node.T.Helper()
	var err error
	for range 4 {
		if err = d.Try(call); err == nil && len(Layers(d.node.T, at)) == 0 {
			return
		}
	}
	d.node.T.Errorf("%s is still mounted: %v", at, err)
}
