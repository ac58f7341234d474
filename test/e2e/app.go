package e2e

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sort"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/csi-addons/node-healer/test/harness"
	"github.com/csi-addons/node-healer/test/harness/csidriver"
)

// App is a pod that uses a volume of the driver.
type App struct {
	n *Node
	// name is the pod's, dir the directory of the volume that it has.
	name, dir string
	// Volume is the handle of its volume, staged and published at these paths.
	Volume            string
	Staged, Published string
	// PID is its first process, as the node sees it, Container its container.
	PID       int
	Container string
}

// DeployApp makes the pod of manifests/app.yaml and waits until it writes to its volume.
func (n *Node) DeployApp() *App {
	n.T.Helper()
	n.Cluster.Apply(n.T, "test/e2e/manifests/app.yaml")
	return n.writes(&App{n: n, name: "app", Volume: "volume-1"}, "data")
}

// DeployPart makes the pod of manifests/part.yaml, which has a directory of its volume only, and
// waits until it writes there.
func (n *Node) DeployPart() *App {
	n.T.Helper()
	n.Cluster.Apply(n.T, "test/e2e/manifests/part.yaml")
	return n.writes(&App{n: n, name: "part", dir: "part", Volume: "volume-2"}, "part")
}

// writes waits until a pod writes to its volume, the PersistentVolume pv.
func (n *Node) writes(a *App, pv string) *App {
	n.T.Helper()
	eventually(n.T, a.name+" writes", func() error {
		if _, err := a.Log(); err != nil {
			return err
		}
		return a.find()
	})
	pod := a.Pod()
	a.Staged = filepath.Join(kubeletRoot, "plugins/kubernetes.io/csi", csidriver.Name,
		fmt.Sprintf("%x", sha256.Sum256([]byte(a.Volume))), "globalmount")
	a.Published = filepath.Join(kubeletRoot, "pods", string(pod.UID), "volumes/kubernetes.io~csi", pv, "mount")
	return a
}

// Pod is the pod as the API has it now.
func (a *App) Pod() *corev1.Pod {
	a.n.T.Helper()
	pod, err := a.n.Cluster.Admin().CoreV1().Pods("default").Get(a.n.T.Context(), a.name, metav1.GetOptions{})
	harness.Must(a.n.T, err)
	return pod
}

// find looks for the app's container and its first process.
func (a *App) find() error {
	statuses := a.Pod().Status.ContainerStatuses
	if len(statuses) != 1 || statuses[0].State.Running == nil {
		return errors.New("the pod does not run")
	}
	a.Container = statuses[0].ContainerID
	_, id, _ := strings.Cut(a.Container, "://")
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return err
	}
	for _, e := range entries {
		cgroup, _ := os.ReadFile(filepath.Join("/proc", e.Name(), "cgroup"))
		status, _ := os.ReadFile(filepath.Join("/proc", e.Name(), "status"))
		if strings.Contains(string(cgroup), id) && isFirst(string(status)) {
			a.PID, err = strconv.Atoi(e.Name())
			return err
		}
	}
	return errors.New("the pod's process is not there")
}

// isFirst says whether a process is process 1 of its namespace (proc(5), NSpid).
func isFirst(status string) bool {
	for line := range strings.Lines(status) {
		if ids, found := strings.CutPrefix(line, "NSpid:"); found {
			fields := strings.Fields(ids)
			return fields[len(fields)-1] == "1"
		}
	}
	return false
}

// Log is what the app wrote to its volume, as it is on the node's disk: one line
// for each time that it could read and write.
func (a *App) Log() (string, error) {
	raw, err := os.ReadFile(filepath.Join(a.n.Driver.Data(a.Volume), a.dir, "log"))
	return string(raw), err
}

// mustLog is Log where the node's disk can be read.
func (a *App) mustLog() string {
	a.n.T.Helper()
	log, err := a.Log()
	harness.Must(a.n.T, err)
	return log
}

// Read reads from the volume as the app sees it.
func (a *App) Read() error {
	_, err := os.ReadFile(fmt.Sprintf("/proc/%d/root/data/said", a.PID))
	return err
}

// Mounts is what the app has mounted, and the node for it: one line for each
// mount, without the numbers that change with every mount.
func (a *App) Mounts() string {
	a.n.T.Helper()
	var lines []string
	for _, process := range []string{"self", strconv.Itoa(a.PID)} {
		for _, m := range harness.Mounts(a.n.T, process) {
			if m.FSType == "fuse."+csidriver.FSType && m.Source == a.Volume || m.Path == "/data" {
				lines = append(lines, fmt.Sprintf("%s %s %s %s %s %s shared=%v slave=%v", process,
					m.Path, m.Root, m.Attr, m.FSType, m.Source, m.Propagation.Shared != 0, m.Propagation.Master != 0))
			}
		}
	}
	sort.Strings(lines)
	return strings.Join(lines, "\n")
}

// wasNotRestarted fails the test when the pod is not what it was.
func (a *App) wasNotRestarted() {
	a.n.T.Helper()
	now := &App{n: a.n, name: a.name}
	harness.Must(a.n.T, now.find())
	restarts := a.Pod().Status.ContainerStatuses[0].RestartCount
	if restarts != 0 || now.Container != a.Container || now.PID != a.PID {
		a.n.T.Errorf("%d restarts, container %s (was %s), process %d (was %d)", restarts, now.Container, a.Container, now.PID, a.PID)
	}
}
