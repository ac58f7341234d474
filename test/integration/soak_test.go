package integration

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/csi-addons/node-healer/test/harness"
	"github.com/csi-addons/node-healer/test/harness/csidriver"
)

// soakEnv is how long faults come and go (time.ParseDuration), with soakMany volumes if
// that is minutes.
const (
	soakEnv  = "NODE_HEALER_SOAK"
	soakMany = 1_000
)

// soak is volumes of mixed kinds, some of which a container uses.
type soak struct {
	n       *harness.Node
	d       *harness.CSIDriver
	volumes []*harness.Volume
	healthy []string
}

func newSoak(t *testing.T, loop string, count int) *soak {
	t.Helper()
	n := harness.NewNode(t, "--standalone", "--loop="+loop, "--check-interval=10s", "--restage-driver="+harness.Driver+"=unmount-first")
	s := &soak{n: n, d: n.NewCSIDriver(csidriver.Mode{NoAddons: true})}
	n.Start()
	var mounts []harness.ContainerMount
	for i := range count {
		var v *harness.Volume
		switch id := fmt.Sprint("v", i); {
		case i < 3:
			v = n.NewVolume([]string{"ext4", "xfs", "btrfs"}[i], id)
		case i%4 == 0:
			v = s.d.NewVolume(id)
		default:
			v = n.NewVolume("tmpfs", id)
		}
		s.volumes = append(s.volumes, v)
		mounts = append(mounts, harness.ContainerMount{At: "/" + v.ID, Source: v.MountPoint()})
	}
	n.StartContainer(harness.ContainerSpec{Mounts: mounts})
	for _, v := range s.volumes {
		n.Expect("healthy", s.d.Request(v))
	}
	s.healthy = s.table()
	return s
}

// numbers are those of superblocks, which a daemon that was started again has others of.
var numbers = regexp.MustCompile(` \d+:\d+ `)

func (s *soak) table() []string {
	table := s.n.Table()
	for i := range table {
		table[i] = numbers.ReplaceAllString(table[i], " dev ")
	}
	slices.Sort(table)
	return table
}

// breaks breaks a volume that works.
func (s *soak) breaks(v *harness.Volume) {
	if unix.Statfs(v.MountPoint(), new(unix.Statfs_t)) != nil || len(harness.Layers(s.n.T, v.MountPoint())) == 0 {
		return // it is broken
	}
	if pid, err := s.d.Daemon(v.ID); err == nil && rand.N(2) == 0 {
		_ = unix.Kill(pid, unix.SIGKILL)
		return
	}
	_ = unix.Unmount(v.MountPoint(), unix.MNT_DETACH) // a step may just have changed it
}

// TestSoak has faults come and go at volumes of mixed kinds, with no call: what can be
// healed is healed, or with --loop=observe left as it is. No two steps of different kinds
// ever run at one volume at a time, and in the end nothing has grown.
func TestSoak(t *testing.T) {
	harness.NeedsKernel(t, harness.KernelIs(6, 16), "which daemon serves a FUSE connection")
	text := os.Getenv(soakEnv)
	if text == "" {
		t.Skip("takes minutes: make soak")
	}
	lasts, err := time.ParseDuration(text)
	harness.Must(t, err)
	count := min(soakMany, 8*int(lasts.Seconds())+16)
	t.Run("heal", func(t *testing.T) {
		s := newSoak(t, "heal", count)
		files, tasks := openFiles(t, s.n.PID()), threads(t, s.n)
		for end := time.Now().Add(lasts); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
			s.breaks(s.volumes[rand.N(len(s.volumes))])
		}
		// The loop heals 120 volumes a minute. A daemon that died while it was started is
		// tried again after a minute, and after two more.
		for end := time.Now().Add(5*time.Minute + time.Duration(count)*time.Second/2); !slices.Equal(s.table(), s.healthy); time.Sleep(time.Second) {
			if time.Now().After(end) {
				t.Fatalf("not all volumes are healed\nnow:\n%s\nbefore:\n%s", strings.Join(s.table(), "\n"), strings.Join(s.healthy, "\n"))
			}
		}
		s.oneStepAtATime(t)
		for _, v := range s.volumes {
			s.n.Expect("healthy", s.d.Request(v))
		}
		harness.Eventually(t, "descriptors and threads are as they were", func() bool {
			return openFiles(t, s.n.PID()) <= files+len(s.volumes)/4 && threads(t, s.n) <= tasks+8
		})
	})
	t.Run("observe", func(t *testing.T) {
		s := newSoak(t, "observe", count)
		for range count / 10 {
			s.breaks(s.volumes[rand.N(len(s.volumes))])
		}
		broken := s.table()
		time.Sleep(lasts / 3)
		if !slices.Equal(s.table(), broken) {
			t.Error("the loop changed a mount")
		}
	})
}

// oneStepAtATime reads the audit log: what runs at several mount points at once is one
// step.
func (s *soak) oneStepAtATime(t *testing.T) {
	t.Helper()
	raw, err := os.ReadFile(s.n.StateDir() + "/audit.log")
	harness.Must(t, err)
	running, healed := map[string][]string{}, 0
	for line := range strings.Lines(string(raw)) {
		var e struct{ When, VolumeID, Step string }
		harness.Must(t, json.Unmarshal([]byte(line), &e))
		now := running[e.VolumeID]
		if e.When == "before" {
			if len(now) > 0 && now[0] != e.Step {
				t.Errorf("%s began at %s while %s ran", e.Step, e.VolumeID, now[0])
			}
			running[e.VolumeID] = append(now, e.Step)
			continue
		}
		if len(now) > 0 {
			running[e.VolumeID] = now[1:]
		}
		healed++
	}
	if healed == 0 {
		t.Error("nothing was healed")
	}
	t.Logf("%d steps", healed)
}
