package host

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/csi-addons/node-healer/pkg/workerops"
)

func whoHolds(t *testing.T, n *Node, a Holdable) Holders {
	t.Helper()
	n.holders.started = time.Time{} // or it would tell what was before
	all, err := n.Holders(context.Background(), []Holdable{a})
	if err != nil {
		t.Fatal(err)
	}
	return all[a]
}

// One volume with everything: mounted in another mount namespace, used by a
// process there, its device open, a second loop device on its file, and inside
// it a file that is a loop device too.
func TestHoldersOfAVolume(t *testing.T) {
	realKernel(t)
	n, _ := newNode(t)
	node, image := loop(t, 16)
	command(t, "mkfs.ext4", "-q", node)
	dir := t.TempDir()
	pid, _ := propagatedMounts(t, `mount "$1" "$2"; truncate -s 1M "$2/inner"; exec 3<&0
		(cd "$2"; exec cat <&3 >/dev/null) & (exec cat <&3 4<"$1" >/dev/null) & `, []string{node, dir})
	a := Holdable{Superblock: devOf(t, node), Device: devOf(t, node)}
	var h Holders
	eventually(t, "both processes hold it", func() bool {
		h = whoHolds(t, n, a)
		// Until it is one, each is the shell that forked it.
		cats := slices.IndexFunc(h.Processes, func(p HeldBy) bool { return p.Command != "cat" }) < 0
		return cats && len(h.Processes) == 2
	})
	var how []workerops.How
	for _, p := range h.Processes {
		how = append(how, p.How)
	}
	slices.Sort(how)
	if !slices.Equal(how, []workerops.How{workerops.HowWorkingDirectory, workerops.HowDevice}) {
		t.Errorf("held by %v", h.Processes)
	}
	if len(h.Mounts) != 1 || h.Mounts[0].PID != pid || h.Mounts[0].Path != dir || h.Mounts[0].Namespace == 0 {
		t.Errorf("mounts %+v", h.Mounts)
	}
	if h.Device.Claim != ClaimUnknown || len(h.Device.Loops) != 0 || len(h.Loops) != 0 {
		t.Errorf("%+v, %v", h.Device, h.Loops)
	}

	second := command(t, "losetup", "--find", "--show", image)
	t.Cleanup(func() { command(t, "losetup", "--detach", second) })
	if h := whoHolds(t, n, a); !slices.Equal(h.Device.Loops, []string{filepath.Base(second)}) {
		t.Errorf("a second loop device: %+v", h.Device)
	}
	above := command(t, "losetup", "--find", "--show", node)
	t.Cleanup(func() { command(t, "losetup", "--detach", above) })
	if h := whoHolds(t, n, a); !slices.Contains(h.Device.Loops, filepath.Base(above)) {
		t.Errorf("a loop device on the device: %+v", h.Device)
	}
}

func TestHoldersOfARawDevice(t *testing.T) {
	realKernel(t)
	n, _ := newNode(t)
	node, _ := loop(t, 16)
	a := Holdable{Device: devOf(t, node)}
	if h := whoHolds(t, n, a); h.Device.Claim != ClaimNone || len(h.Processes)+len(h.Mounts) != 0 {
		t.Errorf("it is not held: %+v", h)
	}
	command(t, "mkswap", node)
	command(t, "swapon", node)
	h := whoHolds(t, n, a)
	command(t, "swapoff", node)
	if h.Device.Claim != ClaimTaken {
		t.Errorf("it is swap: %+v", h.Device)
	}
	if h := whoHolds(t, n, Holdable{Device: Dev{Major: 7, Minor: 9999}}); h.Device.Claim != ClaimUnknown {
		t.Errorf("a device that is not there: %+v", h)
	}
}

// A loop device on a filesystem holds it without any process.
func TestHeldByTheKernelItself(t *testing.T) {
	table := NewTable([]Mount{
		{OldID: 1, OldParent: 0, Dev: Dev{Major: 8, Minor: 1}, Path: "/", Root: "/"},
		{OldID: 2, OldParent: 1, Dev: Dev{Major: 0, Minor: 5}, Path: "/dev", Root: "/", FSType: "devtmpfs"},
		{OldID: 3, OldParent: 1, Dev: Dev{Major: 8, Minor: 17}, Path: "/staged", Root: "/"},
		{OldID: 4, OldParent: 1, Dev: Dev{Major: 8, Minor: 17}, Path: "/published", Root: "/sub"},
		{OldID: 5, OldParent: 1, Dev: Dev{Major: 0, Minor: 5}, Path: "/kubelet/node", Root: "/sdc"},
	})
	n := &Node{cfg: Config{
		Sysfs: Sysfs(tree(t, map[string]string{
			"dev/block/8:17":                "-> ../../devices/sdb/sdb1",
			"dev/block/8:16":                "-> ../../devices/sdb",
			"dev/block/8:32":                "-> ../../devices/sdc",
			"dev/block/7:1":                 "-> ../../devices/loop1",
			"devices/sdb/sdb1/partition":    "1\n",
			"devices/sdb/sdb2/partition":    "2\n",
			"devices/sdb/holders/md1":       "",
			"devices/sdb/sdb1/holders/dm-0": "",
			"devices/sdb/sdb2/holders/dm-1": "",
			"devices/sdc/size":              "8\n",
			"devices/loop1/size":            "8\n",
			"class/block/sdb":               "-> ../../devices/sdb",
			"class/block/sdb1":              "-> ../../devices/sdb/sdb1",
			"class/block/sdb2":              "-> ../../devices/sdb/sdb2",
			"block/loop1/loop/backing_file": "/published/image\n",
			"block/loop2/loop/backing_file": "/staged/sub/image\n",
			"block/loop3/loop/backing_file": "/staged/sub/image (deleted)\n",
			"block/loop4/loop/backing_file": "/kubelet/node\n",
			"block/loop5/loop/backing_file": "/elsewhere/image\n",
			"block/loop6/size":              "0\n",
			"block/sda/size":                "8\n",
		})),
	}}
	for name, tc := range map[string]struct {
		asked Holdable
		want  string
	}{
		"filesystem on a partition":     {Holdable{Dev{Major: 8, Minor: 17}, Dev{Major: 8, Minor: 17}}, "files [loop1 loop2 loop3] above [dm-0 md1] loops []"},
		"disk with partitions":          {Holdable{Device: Dev{Major: 8, Minor: 16}}, "files [] above [dm-0 dm-1 md1] loops []"},
		"node that kubelet has bound":   {Holdable{Device: Dev{Major: 8, Minor: 32}}, "files [] above [] loops [loop4]"},
		"same file at two of its paths": {Holdable{Device: Dev{Major: 7, Minor: 1}}, "files [] above [] loops [loop2]"},
		"no device":                     {Holdable{Superblock: Dev{Major: 0, Minor: 77}}, "files [] above [] loops []"},
		"unknown device":                {Holdable{Device: Dev{Major: 9, Minor: 9}}, "files [] above [] loops []"},
	} {
		var h Holders
		n.holdersInKernel(table, tc.asked, &h)
		got := fmt.Sprintf("files %v above %v loops %v", h.Loops, h.Device.Above, h.Device.Loops)
		if got != tc.want {
			t.Errorf("%s: %s\nwant %s", name, got, tc.want)
		}
	}
}

// The worker says what it saw; here it gets pods and one entry for a process.
func TestHoldersInAScan(t *testing.T) {
	const container = "abcdef1234567890abcdef1234567890abcdef1234567890abcdef1234567890"
	cgroup := "12:cpu:/\n0::/kubepods/burstable/pod" + podUID + "/" + container + "\n"
	volume := workerops.Number{Major: 8, Minor: 16}
	scan := workerops.HoldersAnswer{
		Superblocks: map[workerops.Number]workerops.Held{volume: {
			Mounts:    []workerops.HeldMount{{Namespace: 9, Path: "/data", PID: 10, Cgroup: cgroup}},
			Processes: []workerops.HeldBy{{PID: 10, Command: "a\x1b[2J\nb", How: workerops.HowFile, Cgroup: cgroup}},
		}},
		Devices: map[workerops.Number]workerops.Held{volume: {Processes: []workerops.HeldBy{
			{PID: 10, How: workerops.HowDevice}, {PID: 11, Command: "dd", How: workerops.HowDevice, Cgroup: "0::/user.slice\n"},
		}}},
		Unknown: 3, Unseen: 2, Cut: true,
	}
	got := holdersIn(scan, Holdable{Dev(volume), Dev(volume)})
	want := Holders{
		Mounts: []HeldMount{{Namespace: 9, Path: "/data", PID: 10, PodUID: podUID, ContainerID: container}},
		Processes: []HeldBy{
			{PID: 10, Command: "a\x1b[2J\nb", How: workerops.HowFile | workerops.HowDevice, PodUID: podUID, ContainerID: container},
			{PID: 11, Command: "dd", How: workerops.HowDevice},
		},
		Unknown: 3, Unseen: 2, Cut: true,
	}
	if fmt.Sprintf("%+v", got) != fmt.Sprintf("%+v", want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
	if other := holdersIn(scan, Holdable{Superblock: Dev{Major: 8, Minor: 17}}); len(other.Mounts)+len(other.Processes) != 0 {
		t.Errorf("another one: %+v", other)
	}
}

// What is asked of one volume is asked of all, and of nothing else.
func TestVolumesOfTheNode(t *testing.T) {
	n := &Node{kubelet: Kubelet{Root: "/k"}}
	staged := "/k/plugins/kubernetes.io/csi/d/" + fmt.Sprintf("%064d", 1) + "/globalmount"
	got, disks := n.volumesOf(NewTable([]Mount{
		{OldID: 1, Dev: Dev{Major: 8, Minor: 1}, Path: "/"},
		{OldID: 2, OldParent: 1, Dev: Dev{Major: 8, Minor: 16}, Path: staged, Root: "/"},
		{OldID: 3, OldParent: 1, Dev: Dev{Major: 8, Minor: 16}, Path: "/k/pods/u/volumes/kubernetes.io~csi/p/mount", Root: "/"},
		{OldID: 4, OldParent: 1, Dev: Dev{Major: 8, Minor: 32}, Path: "/k/pods/u/volumes/kubernetes.io~csi/q/mount", Root: "/"},
		{OldID: 7, OldParent: 1, Dev: Dev{Major: 0, Minor: 60}, Path: "/k/pods/u/volumes/kubernetes.io~csi/r/mount", Root: "/"},
		{OldID: 5, OldParent: 1, Dev: Dev{Major: 0, Minor: 50}, Path: "/k/pods/u/volumes/kubernetes.io~secret/s", Root: "/"},
		{OldID: 6, OldParent: 1, Dev: Dev{Major: 0, Minor: 5}, Path: "/k/plugins/kubernetes.io/csi/volumeDevices/publish/p/u", Root: "/sdd", FSType: "devtmpfs"},
	}))
	if !slices.Equal(got, []Dev{{Major: 8, Minor: 16}, {Major: 8, Minor: 32}, {Major: 0, Minor: 60}}) || !slices.Equal(disks, []Dev{{Major: 8, Minor: 16}, {Major: 8, Minor: 32}}) {
		t.Errorf("%v, devices %v", got, disks)
	}
}
