package integration

import (
	"fmt"
	"math/rand/v2"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/csi-addons/node-healer/pkg/api/healerpb"
	"github.com/csi-addons/node-healer/test/harness"
	"github.com/csi-addons/node-healer/test/harness/csidriver"
)

// soakEnv is how long faults come and go (time.ParseDuration), at up to soakMany volumes.
// Without it a few faults come, at soakFew.
const (
	soakEnv  = "NODE_HEALER_SOAK"
	soakFew  = 40
	soakMany = 1_000
)

// soak is volumes of mixed kinds, which containers use.
type soak struct {
	n       *harness.Node
	d       *harness.CSIDriver
	socket  string // of the metrics
	volumes []*soaked
	// healthy is the mount table before the first fault, idle what the server has then.
	healthy []string
	idle    footprint
}

// soaked is a volume with the mount points at which it is published.
type soaked struct {
	*harness.Volume
	at []string
}

func newSoak(t *testing.T, loop string, count int) *soak {
	t.Helper()
	n := harness.NewNode(t, "--standalone", "--loop="+loop, "--check-interval=10s", "--restage-driver="+harness.Driver+"=unmount-first")
	s := &soak{n: n, d: n.NewCSIDriver(csidriver.Mode{NoAddons: true}), socket: n.Dir + "/metrics/s"}
	n.Args = append(n.Args, "--metrics-socket=unix://"+s.socket)
	n.Start()
	pods := map[string][]harness.ContainerMount{}
	for i := range count {
		v := s.newVolume(i)
		s.volumes = append(s.volumes, v)
		if v.FS == "block" {
			continue
		}
		for j, at := range v.at {
			pod := []string{harness.PodUID, harness.OtherPod}[j]
			pods[pod] = append(pods[pod], harness.ContainerMount{At: "/" + v.ID, Source: at})
		}
	}
	for pod, mounts := range pods {
		n.StartContainer(harness.ContainerSpec{Pod: pod, Mounts: mounts})
	}
	for _, v := range s.volumes {
		n.Expect("healthy", s.request(v))
	}
	s.healthy = s.table()
	s.allHealthy()
	harness.Eventually(t, "the daemons are followed", func() bool { return s.followed() == len(s.served()) })
	s.idle = s.footprint()
	return s
}

// newVolume makes a volume of a kind that its number decides: a quarter have a FUSE
// daemon, a tenth are used by two pods.
func (s *soak) newVolume(i int) *soaked {
	s.n.T.Helper()
	id := fmt.Sprint("v", i)
	if i%4 == 0 {
		v := s.d.NewVolume(id)
		return &soaked{v, []string{v.MountPoint()}}
	}
	kind := "tmpfs"
	switch i % 50 {
	case 1, 2, 3:
		kind = []string{"ext4", "xfs", "btrfs"}[i%50-1]
	case 5, 6:
		kind = "block"
	}
	if i > soakFew && (kind == "xfs" || kind == "btrfs") {
		kind = "ext4" // of which mkfs is quick
	}
	v := &soaked{s.n.NewVolume(kind, id), nil}
	v.at = []string{v.MountPoint()}
	if i%10 == 9 {
		v.Publish(harness.OtherPod)
		v.at = append(v.at, v.MountPointOf(harness.OtherPod))
	}
	return v
}

func (s *soak) request(v *soaked) *healerpb.NodeHealerRequest {
	if v.FS == "fuse" {
		return s.d.Request(v.Volume)
	}
	return v.Request()
}

// served are the volumes that have a daemon.
func (s *soak) served() []*soaked {
	return slices.DeleteFunc(slices.Clone(s.volumes), func(v *soaked) bool { return v.FS != "fuse" })
}

// breakable are the volumes that are broken. Raw block volumes only stand by: no container
// has one mounted, so only an API proves that a lost one is still wanted
// (TestLoopDuringAnOutage).
func (s *soak) breakable() []*soaked {
	return slices.DeleteFunc(slices.Clone(s.volumes), func(v *soaked) bool { return v.FS == "block" })
}

// some returns so many volumes in random order.
func (s *soak) some(count int) []*soaked {
	all := s.breakable()
	rand.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	return all[:count]
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

// difference returns the lines that are only before, with a -, and those only after.
func difference(before, after []string) string {
	var lines []string
	for _, line := range before {
		if !slices.Contains(after, line) {
			lines = append(lines, "- "+line)
		}
	}
	for _, line := range after {
		if !slices.Contains(before, line) {
			lines = append(lines, "+ "+line)
		}
	}
	if len(lines) == 0 && len(before) != len(after) {
		lines = []string{fmt.Sprintf("%d lines, and %d", len(before), len(after))}
	}
	return strings.Join(lines, "\n")
}

// sick is how many volumes the metrics show as abnormal. One that was not checked yet
// counts as abnormal.
func (s *soak) sick() int {
	healthy := harness.Metric(s.n.T, harness.Scrape(s.n.T, s.socket), `node_healer_volumes{condition="Healthy"`)
	return len(s.volumes) - int(healthy)
}

// allHealthy waits until the loop has seen all volumes healthy.
func (s *soak) allHealthy() {
	s.n.T.Helper()
	harness.Eventually(s.n.T, "all volumes are seen healthy", func() bool { return s.sick() == 0 })
}

// breaks breaks a volume, at one of its mount points, if that works.
func (s *soak) breaks(v *soaked) {
	at := v.at[rand.N(len(v.at))]
	if unix.Statfs(at, new(unix.Statfs_t)) != nil || len(harness.Layers(s.n.T, at)) == 0 {
		return // it is broken
	}
	if pid, err := s.d.Daemon(v.ID); err == nil && rand.N(2) == 0 {
		_ = unix.Kill(pid, unix.SIGKILL)
		return
	}
	_ = unix.Unmount(at, unix.MNT_DETACH) // a step may just have changed it
}

// TestSoak has faults come and go at volumes of mixed kinds, with no call: what can be
// healed is healed, or with --loop=observe only reported. No two heals ever run at one
// volume at a time, and in the end nothing has grown.
func TestSoak(t *testing.T) {
	harness.NeedsFull(t)
	harness.NeedsKernel(t, harness.KernelIs(6, 16), "which daemon serves a FUSE connection")
	count, lasts := soakFew, time.Duration(0)
	if text := os.Getenv(soakEnv); text != "" {
		var err error
		lasts, err = time.ParseDuration(text)
		harness.Must(t, err)
		count = min(soakMany, 8*int(lasts.Seconds())+soakFew)
	}
	t.Run("heal", func(t *testing.T) { testSoakHeals(t, count, lasts) })
	t.Run("observe", func(t *testing.T) { testSoakObserves(t, count, lasts) })
}

func testSoakHeals(t *testing.T, count int, lasts time.Duration) {
	s := newSoak(t, "heal", count)
	start := time.Now()
	for _, v := range s.some(count / 3) { // each once
		s.breaks(v)
		time.Sleep(100 * time.Millisecond)
	}
	for all := s.breakable(); time.Since(start) < lasts; {
		s.breaks(all[rand.N(len(all))])
		time.Sleep(20 * time.Millisecond)
	}
	s.healed(5*time.Minute + time.Duration(count)*time.Second/2)
	t.Logf("%d volumes are healed %s after the first fault", count, time.Since(start).Round(time.Second))
	for _, v := range s.volumes {
		s.n.Expect("healthy", s.request(v))
	}
	s.oneHealAtATime()
	s.sameFootprint()
}

// healed waits until all is as before the first fault. The loop heals 120 volumes a
// minute; a daemon that died while it was started is tried again after a minute, and after
// two more.
func (s *soak) healed(within time.Duration) {
	s.n.T.Helper()
	works := func(v *soaked) bool {
		return !slices.ContainsFunc(v.at, func(at string) bool { return unix.Statfs(at, new(unix.Statfs_t)) != nil })
	}
	all := func() bool {
		return s.sick() == 0 && !slices.ContainsFunc(s.volumes, func(v *soaked) bool { return !works(v) }) && slices.Equal(s.table(), s.healthy)
	}
	for end := time.Now().Add(within); !all(); time.Sleep(200 * time.Millisecond) {
		if time.Now().After(end) {
			s.n.T.Fatalf("not all volumes are healed: %d are sick\n%s", s.sick(), difference(s.healthy, s.table()))
		}
	}
}

// testSoakObserves has faults that pass: lost binds, and daemons that stop for a while.
// In the end daemons die.
func testSoakObserves(t *testing.T, count int, lasts time.Duration) {
	s := newSoak(t, "observe", count)
	// A check that looks for a container with a lost volume reads all its mounts.
	faults, stops := min(count/5, 50), 0
	if lasts > 0 { // a daemon that stops is noticed at its volume's turn
		stops = 3
	}
	rounds := 0
	for start := time.Now(); rounds < 2 || time.Since(start) < lasts; rounds++ {
		broken := s.some(faults)
		mend, stopped := func() {}, 0
		for _, v := range broken {
			at := v.at[rand.N(len(v.at))]
			if pid, err := s.d.Daemon(v.ID); err == nil && stopped < stops {
				stopped++
				harness.Suspend(t, pid)
				mend = both(mend, func() { harness.Must(t, unix.Kill(pid, unix.SIGCONT)) })
				continue
			}
			harness.Must(t, unix.Unmount(at, unix.MNT_DETACH))
			mend = both(mend, func() { harness.Must(t, unix.Mount(v.StagedFile(), at, "", unix.MS_BIND, "")) })
		}
		s.onlyReported(len(broken))
		mend()
		s.onlyReported(0)
		if text := difference(s.healthy, s.table()); text != "" {
			t.Fatalf("not all mounts are back\n%s", text)
		}
	}
	t.Logf("%d volumes, %d faults in %d rounds", count, rounds*faults, rounds)
	s.sameFootprint()
	dead := s.served()[:faults/4]
	for _, v := range dead {
		s.d.EndDaemon(v.Volume)
	}
	s.onlyReported(len(dead))
}

func both(first, second func()) func() { return func() { first(); second() } }

// onlyReported waits until the metrics show so many sick volumes, and fails the test if
// anything was done to them.
func (s *soak) onlyReported(sick int) {
	t := s.n.T
	t.Helper()
	before := s.table()
	harness.Eventually(t, fmt.Sprint(sick, " volumes are shown as abnormal"), func() bool { return s.sick() == sick })
	if text := difference(before, s.table()); text != "" {
		t.Errorf("the loop changed a mount\n%s", text)
	}
	if steps := auditOf(t, s.n); len(steps) > 0 {
		t.Errorf("something was done: %v", steps)
	}
}

// oneHealAtATime reads the audit log: what runs at several mount points of a volume at
// once is one step.
func (s *soak) oneHealAtATime() {
	t := s.n.T
	t.Helper()
	running, steps := map[string][]auditLine{}, 0
	for _, e := range auditOf(t, s.n) {
		now := running[e.VolumeID]
		if e.When == "before" {
			for _, other := range now {
				if other.Step != e.Step || other.MountPoint == e.MountPoint {
					t.Errorf("%s at %s began while %s at %s ran", e.Step, e.MountPoint, other.Step, other.MountPoint)
				}
			}
			running[e.VolumeID] = append(now, e)
			continue
		}
		running[e.VolumeID] = slices.DeleteFunc(now, func(o auditLine) bool { return o.Step == e.Step && o.MountPoint == e.MountPoint })
		steps++
	}
	for id, left := range running {
		if len(left) > 0 {
			t.Errorf("%s has no end: %v", id, left)
		}
	}
	out := harness.Scrape(t, s.socket)
	healed := harness.Metric(t, out, `node_healer_heals_total{driver="test.csi.example.com",origin="loop",outcome="healed"}`)
	if healed == 0 || steps == 0 {
		t.Error("nothing was healed")
	}
	t.Logf("%.0f volumes healed by the loop, %.0f heals did not help, %d steps in the audit log",
		healed, harness.Metric(t, out, `node_healer_heals_total{driver="test.csi.example.com",origin="loop",outcome="abnormal"}`), steps)
}

// footprint is what a server has of the machine.
type footprint struct{ descriptors, threads, workers int }

func (s *soak) footprint() footprint {
	return footprint{openFiles(s.n.T, s.n.PID()), threads(s.n.T, s.n), len(s.n.Workers())}
}

// The server keeps up to idleWorkers, each with a socket and a pidfd.
const (
	idleWorkers        = 2
	workersDescriptors = 2 * idleWorkers
)

// moreThreads is what Go's runtime, which ends no thread, may need in addition while many
// calls into the kernel block at once.
const moreThreads = 8

// sameFootprint waits until the server has no more than before the first fault: each
// daemon is followed by one descriptor, then as now.
func (s *soak) sameFootprint() {
	s.n.T.Helper()
	var now footprint
	same := func() bool {
		now = s.footprint()
		return now.descriptors <= s.idle.descriptors+workersDescriptors && now.threads <= s.idle.threads+moreThreads &&
			now.workers <= s.idle.workers+idleWorkers
	}
	for end := time.Now().Add(harness.Patience); !same(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			s.n.T.Errorf("the server had %+v, and has %+v:\n%s", s.idle, now, strings.Join(openNames(s.n), "\n"))
			return
		}
	}
	s.n.T.Logf("the server had %+v, and has %+v", s.idle, now)
}

// followed is how many descriptors of the server tell of superblocks: pidfds of daemons.
func (s *soak) followed() (count int) {
	daemons := map[string]bool{}
	for _, v := range s.served() {
		if pid, err := s.d.Daemon(v.ID); err == nil {
			daemons[fmt.Sprint("[pidfd of ", pid, "]")] = true
		}
	}
	for _, d := range openNames(s.n) {
		if daemons[d] {
			count++
		}
	}
	return count
}
