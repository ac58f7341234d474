package e2e

import (
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/csi-addons/node-healer/test/harness"
)

// comesBackWithItsPod has the driver and its daemons run in a pod, and deletes that. Nobody
// calls: when the pod is back, the same processes read and write again, also the one that has
// a subPath. Then one of the containers is started anew in the middle: kubelet unmounts its
// dead subPath while the healer heals, and may bind it anew in the middle of a step: then the
// container can only read, and the healer says so.
func comesBackWithItsPod(t *testing.T, n *Node, app, part *App) {
	t.Helper()
	harness.Mkdir(t, "/run/driver")
	program, err := os.Executable()
	harness.Must(t, err)
	harness.Must(t, os.WriteFile("/run/driver/driver", nil, 0o755))
	harness.Must(t, unix.Mount(program, "/run/driver/driver", "", unix.MS_BIND, ""))
	n.stopDriver()
	n.Cluster.Apply(t, "test/e2e/manifests/driver.yaml")
	goesOn(t, app)
	goesOn(t, part)

	mounts := []string{app.Mounts(), part.Mounts()}
	deletes := func() { n.Cluster.Kubectl(t, "delete", "pod", "--namespace=kube-system", "--selector=app=csi-driver") }
	deletes()
	for i, a := range []*App{app, part} {
		goesOn(t, a)
		a.wasNotRestarted()
		if now := a.Mounts(); now != mounts[i] {
			t.Errorf("the mounts changed\nbefore:\n%s\nafter:\n%s", mounts[i], now)
		}
	}
	deletes()
	harness.Must(t, unix.Kill(part.PID, unix.SIGKILL))
	goesOn(t, app)
	before := part.mustLog()
	eventually(t, "part writes, or is said to keep the placeholder", func() error {
		if log := part.mustLog(); len(log) > len(before) {
			return nil
		}
		logs, err := filepath.Glob(filepath.Join(logDir, "pods", healerNamespace+"_node-healer-*", "node-healer", "*.log"))
		for _, log := range logs {
			raw, err := os.ReadFile(log)
			harness.Must(t, err)
			if said := regexp.MustCompile(`volume_id="` + part.Volume + `".*ContainerKeptPlaceholder`).Find(raw); said != nil {
				t.Logf("%s", said)
				return nil
			}
		}
		return errors.Join(errors.New("neither"), err)
	})
	app.wasNotRestarted()
	n.DeleteApp(part)
}

// goesOn waits until an app writes more than it has now.
func goesOn(t *testing.T, a *App) {
	t.Helper()
	before, err := a.Log()
	harness.Must(t, err)
	eventually(t, a.name+" reads and writes", func() error {
		now, err := a.Log()
		if err == nil && len(now) == len(before) {
			err = errors.New("its log does not grow")
		}
		return err
	})
}
