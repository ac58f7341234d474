package e2e

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"

	"github.com/csi-addons/node-healer/test/harness"
	"github.com/csi-addons/node-healer/test/harness/csidriver"
)

// TestVolumesComeBack shows it all on one node. The volume of the pod `part` is dead from the
// beginning until the loop may heal: for so long that the Node says so.
func TestVolumesComeBack(t *testing.T) {
	n := Start(t)
	n.leavesCondition()
	healer := n.DeployHealer()
	app, part := n.DeployApp(), n.DeployPart()
	losesItsVolume(t, n, healer, part)
	newPodsGetTheVolumeStagedAnew(t, n)
	aPodGetsItsVolumeBackWithoutARestart(t, n, healer, app)
	n.tells(app)
	healsItsClaim(t, n, app)
	saysWhy(t, healer, app)
	checksItsBucket(t, n)
	n.nodeSays("True DaemonGone: DaemonGone: 1 of " + csidriver.Name + ", Disconnected: 1 of " + csidriver.Name)

	during, mounts := app.mustLog(), app.Mounts()
	healer.HealsByItself()
	goesOn(t, part)
	part.wasNotRestarted()
	recoversByItself(t, n, app, mounts)
	comesBackWithItsPod(t, n, app, part)
	n.DeleteApp(app)
	if after := app.mustLog(); !strings.HasPrefix(after, during) {
		t.Errorf("data was lost\nhealed:\n%s\nin the end:\n%s", during, after)
	}
	n.nodeSays(noProblem)
	n.Cluster.Kubectl(t, "delete", "--cascade=foreground", "--namespace="+healerNamespace, "daemonset/"+gateway)
	n.nodeSays("")
}

// aPodGetsItsVolumeBackWithoutARestart kills a volume's FUSE daemon under a
// running pod. The driver mounts the volume again, which the pod does not see;
// one call to the healer, by the gateway and with a token, later the same process
// reads and writes again.
func aPodGetsItsVolumeBackWithoutARestart(t *testing.T, n *Node, healer *Healer, app *App) {
	t.Helper()
	caller := healer.OverTheNetwork()
	mounts := app.Mounts()
	expect(t, healer, app, "healthy")

	breaks(t, n, app)
	before := app.mustLog()
	expect(t, healer, app, "abnormal")
	kubeletTells(t, n, app)

	n.Restage(app)
	if err := app.Read(); !errors.Is(err, unix.ENOTCONN) {
		t.Fatalf("the app's own mount came back by itself: %v", err)
	}
	expect(t, caller, app, "healed")
	audit, err := os.ReadFile("/var/lib/node-healer/audit.log")
	harness.Must(t, err)
	if !strings.Contains(string(audit), `"caller":"system:serviceaccount:csi-addons-system:csi-addons-controller-manager"`) {
		t.Errorf("the audit log does not say who called:\n%s", audit)
	}

	eventually(t, "the app reads and writes again", func() error {
		now, err := app.Log()
		if err == nil && len(now) == len(before) {
			err = errors.New("its log does not grow")
		}
		return err
	})
	app.wasNotRestarted()
	if now := app.Mounts(); now != mounts {
		t.Errorf("the mounts changed\nbefore:\n%s\nafter:\n%s", mounts, now)
	}
	expect(t, healer, app, "healthy")
	if now := app.mustLog(); !strings.HasPrefix(now, before) {
		t.Errorf("data was lost\nat the daemon's end:\n%s\nhealed:\n%s", before, now)
	}
}

// kubeletTells has the driver answer kubelet by the healer that is built into it: the pod's
// status names the condition.
func kubeletTells(t *testing.T, n *Node, app *App) {
	t.Helper()
	if os.Getenv("TEST_KUBERNETES") != "" {
		t.Log("not shown: an older kubelet does not ask a driver for the health of a volume")
		return
	}
	harness.Must(t, n.Driver.Behave(csidriver.Mode{Healer: true}))
	eventually(t, "the pod's status names the condition", func() error {
		health := app.Pod().Status.VolumeHealth
		for _, volume := range health {
			for _, c := range volume.HealthConditions {
				if c.Status == corev1.VolumeHealthInaccessible && c.Reason == "Disconnected" {
					t.Logf("pod.status.volumeHealth: %+v", volume)
					return nil
				}
			}
		}
		return fmt.Errorf("it has %+v", health)
	})
	harness.Must(t, n.Driver.Behave(csidriver.Mode{}))
}

// breaks kills the volume's daemon.
func breaks(t *testing.T, n *Node, app *App) {
	t.Helper()
	daemon, err := n.Driver.Daemon(app.Volume)
	harness.Must(t, err)
	harness.Must(t, unix.Kill(daemon, unix.SIGKILL))
	eventually(t, "the app cannot read any more", func() error {
		if err := app.Read(); !errors.Is(err, unix.ENOTCONN) {
			return errors.Join(errors.New("reading gives something else"), err)
		}
		return nil
	})
}

// recoversByItself kills the daemon, and nothing else: the node notices, and has the
// driver stage the volume anew.
func recoversByItself(t *testing.T, n *Node, app *App, mounts string) {
	t.Helper()
	for range 2 {
		daemon, err := n.Driver.Daemon(app.Volume)
		harness.Must(t, err)
		harness.Must(t, unix.Kill(daemon, unix.SIGKILL))
		eventually(t, "the app reads again, without a call", func() error {
			if now, err := n.Driver.Daemon(app.Volume); err != nil || now == daemon {
				return errors.Join(errors.New("there is no other daemon"), err)
			}
			return app.Read()
		})
		before, err := app.Log()
		harness.Must(t, err)
		eventually(t, "the app writes again", func() error {
			now, err := app.Log()
			if err == nil && len(now) == len(before) {
				err = errors.New("its log does not grow")
			}
			return err
		})
		app.wasNotRestarted()
		if now := app.Mounts(); now != mounts {
			t.Errorf("the mounts changed\nbefore:\n%s\nafter:\n%s", mounts, now)
		}
	}
}

// expect calls and compares the verdict (healthy, healed, abnormal).
func expect(t *testing.T, healer *Healer, app *App, verdict string) {
	t.Helper()
	answer := healer.Call(app)
	if !strings.HasPrefix(answer.GetMessage(), verdict+":") || answer.GetAbnormal() != (verdict == "abnormal") {
		t.Fatalf("want %s, got abnormal=%v %q", verdict, answer.GetAbnormal(), answer.GetMessage())
	}
}
