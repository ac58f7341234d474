package integration

import (
	"errors"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	mount "k8s.io/mount-utils"

	"github.com/csi-addons/node-healer/pkg/api/healerpb"
)

// removeAll is what careless drivers do to a target after its umount.
func removeAll(path string) error { return os.RemoveAll(path) }

// The ways in which drivers implement NodeUnpublishVolume.
var unpublishers = map[string]func(target string) error{
	// As k8s.io/mount-utils has it, and most drivers use it.
	"mount-utils": func(target string) error {
		return mount.CleanupMountPoint(target, mount.New(""), true)
	},
	// A umount whose "not mounted" is ignored, then the tree is deleted.
	"umount, delete the tree": func(target string) error {
		if err := unix.Unmount(target, 0); err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) {
			return err
		}
		return removeAll(target)
	},
	// The worst: whatever umount says, the tree is deleted.
	"umount lazily, delete the tree": func(target string) error {
		_ = unix.Unmount(target, unix.MNT_DETACH)
		return removeAll(target)
	},
}

// TestUnpublishAtEveryInstant has a driver unpublish the place while a step is
// at work on it, at every instant: the data survives, and kubelet's next try
// brings the unpublishing to its end.
func TestUnpublishAtEveryInstant(t *testing.T) {
	for name, unpublish := range unpublishers {
		for _, instant := range instants {
			t.Run(name+" at "+instant, func(t *testing.T) {
				n := newNode(t, "--standalone")
				n.pause = instant
				n.start()
				v := n.newVolume("ext4", "unpublished")
				n.expect("healthy", v.request())
				sum := v.sum(v.staging)
				v.unpublish()
				answered := n.asyncCall(v.request())
				worker := n.stopped()
				first := unpublish(v.place(podUID))
				must(t, unix.Kill(worker, unix.SIGCONT))
				<-answered
				if got := v.sum(v.staging); got != sum {
					t.Fatalf("the volume lost data; the driver got %v", first)
				}
				eventually(t, "kubelet's next tries succeed", func() bool { return unpublish(v.place(podUID)) == nil })
				if got := v.sum(v.staging); got != sum {
					t.Fatal("the volume lost data in the end")
				}
			})
		}
	}
}

// TestUnpublishAroundTheStep is the hardest order: the umount comes before the
// step, so that it finds nothing, and the deletion at an instant of it. Only the
// proof that the place is wanted helps then, and it ends with the container. It
// is asked for the last time before settling begins: a container that was
// running then has its umount still to come.
func TestUnpublishAroundTheStep(t *testing.T) {
	for _, instant := range instants {
		t.Run(instant, func(t *testing.T) {
			n := newNode(t)
			n.pause = instant
			n.start()
			v := n.newVolume("ext4", "around")
			c := n.newContainer(podUID, v.place(podUID))
			n.expect("healthy", v.request())
			sum := v.sum(v.staging)
			v.unpublish()
			answered := n.asyncCall(v.request())
			worker := n.stopped()
			c.kill()
			remove := removeAll
			if !strings.HasPrefix(instant, "place/") {
				remove = unpublishers["umount, delete the tree"]
			}
			_ = remove(v.place(podUID))
			must(t, unix.Kill(worker, unix.SIGCONT))
			if a := <-answered; a != nil && !a.GetAbnormal() && strings.HasPrefix(instant, "place/") {
				t.Errorf("the place of a pod that is gone was healed: %v", a)
			}
			_ = remove(v.place(podUID))
			if got := v.sum(v.staging); got != sum {
				t.Fatal("the volume lost data")
			}
		})
	}
}

// TestPublishOnTop has the driver publish while a rebind settles: what then lies
// beneath the driver's mount is read-only, so that unpublishing once and
// deleting the tree loses nothing.
func TestPublishOnTop(t *testing.T) {
	for _, instant := range []string{"place/verified", "settle/checked", "settle/alone", "copies", "final/checked", "final/alone"} {
		t.Run(instant, func(t *testing.T) {
			n := newNode(t, "--standalone")
			n.pause = instant
			n.start()
			v := n.newVolume("ext4", "published on top")
			n.expect("healthy", v.request())
			sum := v.sum(v.staging)
			elsewhere := newNamespace(t, "unchanged")
			v.unpublish()
			answered := n.asyncCall(v.request())
			worker := n.stopped()
			v.publishAgain()
			resume(t, worker)
			if a := <-answered; a == nil || !a.GetAbnormal() {
				t.Errorf("got %v", a)
			}
			must(t, unix.Unmount(v.place(podUID), unix.MNT_DETACH))
			for _, attr := range elsewhere.at(v.place(podUID)) {
				if !strings.HasPrefix(attr, "ro,") {
					t.Errorf("elsewhere what was beneath is %s", attr)
				}
			}
			_ = removeAll(v.place(podUID))
			if v.sum(v.staging) != sum {
				t.Fatal("the volume lost data")
			}
		})
	}
}

// TestPublishWhileTakingOff has the driver bind once more in the instant between
// the last look and the umount, which knows names only: the loss is reported.
func TestPublishWhileTakingOff(t *testing.T) {
	n := newNode(t, "--standalone")
	n.pause = "unmount/matched"
	n.start()
	v := n.newVolume("ext4", "bound again")
	n.expect("healthy", v.request())
	n.interimOn(v.staging, v.place(podUID))
	answered := n.asyncCall(v.request())
	worker := n.stopped()
	v.publishAgain()
	resume(t, worker)
	if a := <-answered; a == nil || !a.GetAbnormal() || !strings.Contains(a.GetMessage(), "another mount") {
		t.Errorf("got %v", a)
	}
}

// asyncCall calls in the background.
func (n *node) asyncCall(req *healerpb.NodeHealerRequest) <-chan *healerpb.NodeHealerResponse {
	answered := make(chan *healerpb.NodeHealerResponse, 1)
	go func() {
		a, _ := n.call(req)
		answered <- a
	}()
	return answered
}
