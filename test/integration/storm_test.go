package integration

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/csi-addons/node-healer/pkg/api/adminpb"
	"github.com/csi-addons/node-healer/pkg/api/healerpb"
	"github.com/csi-addons/node-healer/test/harness"
)

const (
	// stormRate is how many filesystems are mounted, and unmounted, in a second.
	stormRate = 2000
	// stormEnv has how long the storm blows, when that is not stormTime.
	stormEnv  = "NODE_HEALER_TEST_STORM"
	stormTime = 12 * time.Second
)

// TestMountStorm checks healthy volumes, and heals one again and again, while
// filesystems are mounted and unmounted all around, also in the directories of other
// pods: no verdict is wrong.
func TestMountStorm(t *testing.T) {
	harness.NeedsFull(t)
	n := harness.NewNode(t, "--standalone").Start()
	var steady []*harness.Volume
	for _, fs := range kinds {
		steady = append(steady, n.NewVolume(fs, "steady "+fs))
	}
	var requests []*healerpb.NodeHealerRequest
	for _, v := range steady {
		n.Expect("healthy", v.Request())
		requests = append(requests, v.Request())
	}
	lost := n.NewVolume("ext4", "lost")
	n.Expect("healthy", lost.Request())
	before := n.Table()

	s := blow(t, n, steady[0])
	asked := n.AskContinuously(3, requests...)
	healed := 0
	for end := time.Now().Add(stormLength(t)); time.Now().Before(end); healed++ {
		lost.Unpublish()
		n.Expect("healed", lost.Request(), "NotMounted")
		n.Expect("healthy", lost.Request())
	}
	mounts, took := s.stop()
	answers := asked.Stop()
	busy, wrong := 0, 0
	for _, a := range answers {
		switch {
		case status.Code(a.Err) == codes.Aborted:
			busy++ // another caller was first
		case a.Err != nil || a.GetAbnormal():
			if wrong++; wrong < 10 {
				t.Errorf("%s %v", a.GetMessage(), a.Err)
			}
		}
	}
	t.Logf("%d mounts and umounts in %s (%.0f in a second); %d answers, %d of them wrong; healed %d times",
		mounts, took.Round(time.Second), float64(mounts)/took.Seconds(), len(answers)-busy, wrong, healed)
	n.SameTable(before)
	for _, v := range steady {
		n.Expect("healthy", v.Request())
	}
}

// TestMountStormBesideTheLoop has the node's loop check healthy volumes during a storm:
// each is checked in its turn, all are seen healthy, nothing is changed, and what the
// storm costs is bounded.
func TestMountStormBesideTheLoop(t *testing.T) {
	harness.NeedsFull(t)
	n := harness.NewNode(t, "--standalone", "--loop=observe", "--check-interval=10s")
	socket := filepath.Join(n.Dir, "metrics", "s")
	n.Args = append(n.Args, "--metrics-socket=unix://"+socket)
	n.Start()
	var steady []*harness.Volume
	for i := range 20 {
		steady = append(steady, n.NewVolume(kinds[i%len(kinds)], fmt.Sprint("steady ", i)))
	}
	healthy := func() int {
		return int(harness.Metric(t, harness.Scrape(t, socket), `node_healer_volumes{condition="Healthy"`))
	}
	harness.Eventually(t, "all volumes are seen healthy", func() bool { return healthy() == len(steady) })
	before := n.Table()

	s, used := blow(t, n, steady[0]), cpuOf(n)
	time.Sleep(stormLength(t) + 5*time.Second) // a turn of each volume, and more
	used = cpuOf(n) - used
	checked := lastChecks(t, n)
	mounts, took := s.stop()

	share := used.Seconds() / took.Seconds()
	t.Logf("%d mounts and umounts in %s; the server and its workers used %s of CPU, %.0f %% of a core", mounts, took.Round(time.Second), used, 100*share)
	if share >= 1 {
		t.Errorf("the storm took %.1f cores", share)
	}
	for _, v := range steady {
		if !checked[v.ID].After(s.begun) {
			t.Errorf("%s was last checked %s before the storm", v.ID, s.begun.Sub(checked[v.ID]))
		}
	}
	if now := healthy(); now != len(steady) {
		t.Errorf("%d of %d volumes are healthy", now, len(steady))
	}
	n.SameTable(before)
	if steps := auditOf(t, n); len(steps) > 0 {
		t.Errorf("something was done: %v", steps)
	}
}

// lastChecks is when the loop last had an answer, by volume.
func lastChecks(t *testing.T, n *harness.Node) map[string]time.Time {
	t.Helper()
	list, err := adminpb.NewAdminClient(n.Conn).ListVolumes(t.Context(), &adminpb.ListVolumesRequest{})
	harness.Must(t, err)
	checked := map[string]time.Time{}
	for {
		v, err := list.Recv()
		if errors.Is(err, io.EOF) {
			return checked
		}
		harness.Must(t, err)
		checked[v.GetVolumeId()] = v.GetChecked().AsTime()
	}
}

func stormLength(t *testing.T) time.Duration {
	t.Helper()
	text := os.Getenv(stormEnv)
	if text == "" {
		return stormTime
	}
	d, err := time.ParseDuration(text)
	harness.Must(t, err)
	return d
}

// storm mounts and unmounts.
type storm struct {
	end    chan struct{}
	ended  sync.WaitGroup
	begun  time.Time
	mounts int
}

// blow lets a storm begin: binds of a volume, and filesystems of their own, in
// directories of pods and beside kubelet's root.
func blow(t *testing.T, n *harness.Node, v *harness.Volume) *storm {
	t.Helper()
	s := &storm{end: make(chan struct{}), begun: time.Now()}
	var dirs []string
	for i := range 20 {
		dirs = append(dirs,
			filepath.Join(n.Kubelet, "pods", fmt.Sprintf("0d1c5a2e-0000-4000-8000-%012d", 100+i), "volumes/kubernetes.io~csi", v.PV, "mount"),
			filepath.Join(n.Kubelet, "plugins/kubernetes.io/csi/storm", fmt.Sprint(i), "globalmount"),
			filepath.Join(n.Dir, "storm", fmt.Sprint(i)))
	}
	for _, dir := range dirs {
		harness.Mkdir(t, dir)
	}
	s.ended.Go(func() {
		for {
			// In gusts, as a timer is not so fine.
			for due := int(time.Since(s.begun).Seconds() * stormRate); s.mounts < due; {
				s.mount(t, dirs[s.mounts%len(dirs)], v.Staging)
			}
			select {
			case <-time.After(time.Millisecond):
			case <-s.end:
				return
			}
		}
	})
	t.Cleanup(func() { s.stop() })
	return s
}

// mount mounts something and takes it off again.
func (s *storm) mount(t *testing.T, dir, volume string) {
	var err error
	if s.mounts%3 == 0 {
		err = unix.Mount(volume, dir, "", unix.MS_BIND, "")
	} else {
		err = unix.Mount("storm", dir, "tmpfs", 0, "size=64k")
	}
	if err == nil {
		err = unix.Unmount(dir, unix.MNT_DETACH)
	}
	if err != nil {
		t.Error(err)
	}
	s.mounts++
}

// stop ends the storm and says how many mounts there were in what time.
func (s *storm) stop() (mounts int, took time.Duration) {
	select {
	case <-s.end:
	default:
		close(s.end)
	}
	s.ended.Wait()
	return s.mounts, time.Since(s.begun)
}
