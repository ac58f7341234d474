package bench

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/csi-addons/node-healer/internal/ops"
	"github.com/csi-addons/node-healer/internal/worker"
	"github.com/csi-addons/node-healer/pkg/facts"
	"github.com/csi-addons/node-healer/test/harness"
)

const (
	// containers is how many use the volume.
	containers = 200
	// deaths is how often its daemon dies for a line.
	deaths = 5
)

// TestContainers measures how long it takes to bring a volume back to all the
// containers that use it, after the daemon behind it has died and the driver has
// started another one.
func TestContainers(t *testing.T) {
	wanted(t, "containers")
	n := harness.NewNode(t, asReleased).Start()
	v, d := n.NewFUSEDisk("containers", harness.FUSEConfig{})
	var all []*harness.Container
	for i := range containers {
		all = append(all, n.StartContainer(harness.ContainerSpec{
			Name:   fmt.Sprint(i),
			Mounts: []harness.ContainerMount{{At: "/data", Source: v.MountPoint()}},
		}))
	}
	n.Expect("healthy", v.Request())
	die := func() {
		d.Kill()
		d.Restage()
	}
	var heals, looks times
	var used time.Duration
	for range deaths {
		die()
		before := usedBy(t, n.PID())
		heals = append(heals, timeOf(func() { n.Expect("healed", v.Request()) }))
		allHave(t, d, all)
		used += usedBy(t, n.PID()) - before
		looks = append(looks, timeOf(func() { n.Expect("healthy", v.Request()) }))
	}
	row(fmt.Sprintf("a dead FUSE volume of %d containers back in all of them, each", containers),
		fmt.Sprintf("call %s, best %s, CPU %s", milli(heals.median()), milli(heals.quantile(0)), milli(used/deaths)),
		float64(heals.median())/1e6/containers, atMost(1, " ms"))
	n.Stop()

	// The same work, asked of a worker without a server, which tells more.
	n.Args = append(n.Args, "--heal-containers=off")
	n.Start()
	var swaps times
	for range deaths {
		die()
		n.Expect("abnormal", v.Request(), "StaleInContainers")
		swaps = append(swaps, swapAll(t, v, all)...)
		allHave(t, d, all)
	}
	row("of that, between the living mount beneath and the dead one off, median",
		fmt.Sprintf("%d, best %s, worst %s", len(swaps), micro(swaps.quantile(0)), micro(swaps.quantile(1))),
		float64(swaps.median())/1e3, atMost(200, " us"))
	row(fmt.Sprintf("a check in the minute after, which looks into %d containers", containers),
		fmt.Sprintf("median of %d", deaths), float64(looks.median())/1e6, untold(" ms"))
}

func timeOf(do func()) time.Duration {
	start := time.Now()
	do()
	return time.Since(start)
}

// usedBy is the CPU time of a process and of its children that have ended, in
// steps of ten milliseconds (proc_pid_stat(5)).
func usedBy(t testing.TB, pid int) time.Duration {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
	harness.Must(t, err)
	fields := strings.Fields(string(raw[bytes.LastIndexByte(raw, ')')+2:]))
	ticks := 0
	for _, field := range fields[11:15] { // utime, stime, cutime, cstime
		n, err := strconv.Atoi(field)
		harness.Must(t, err)
		ticks += n
	}
	const tick = 10 * time.Millisecond
	return time.Duration(ticks) * tick
}

// allHave fails the test unless every container has what is staged now, and
// nothing else.
func allHave(t *testing.T, d *harness.FUSEDisk, all []*harness.Container) {
	t.Helper()
	for _, c := range all {
		if got := c.MountsAt("/data"); len(got) != 1 || got[0].Dev != d.Dev() || got[0].Attr.Has(facts.AttrReadOnly) {
			t.Fatalf("a container has %v", got)
		}
	}
}

// swapAll has a worker replace the dead mount in all containers.
func swapAll(t *testing.T, v *harness.Volume, all []*harness.Container) (swaps times) {
	t.Helper()
	pool := worker.NewPool(worker.Config{
		Binary: filepath.Join(filepath.Dir(harness.Server()), "node-healer-worker"),
		Max:    1, Idle: 1, KillWait: time.Second,
	})
	defer func() { harness.Must(t, pool.Close(context.Background())) }()
	source := harness.Layers(t, v.MountPoint())[0]
	q := ops.ReplaceInContainersQuery{Budget: harness.Patience}
	for _, c := range all {
		dead := c.MountsAt("/data")[0]
		q.Swaps = append(q.Swaps, facts.ContainerSwap{
			Container: facts.ContainerMount{
				Container: facts.Container{PID: c.PID(), Namespace: namespaceOf(t, c)},
				Mount:     facts.Mount{Path: dead.Path, OldID: dead.OldID},
			},
			Source: facts.Mount{Path: source.Path, OldID: source.OldID}, Attr: dead.Attr,
		})
	}
	ctx, cancel := context.WithTimeout(t.Context(), harness.Patience)
	defer cancel()
	answer, err := worker.Call(ctx, pool, ops.ReplaceInContainers, q)
	harness.Must(t, err)
	for _, r := range answer {
		if r.Err != "" || r.Errno != 0 {
			t.Fatalf("a container was not healed: %+v", r)
		}
		swaps = append(swaps, r.Swapped)
	}
	return swaps
}

// namespaceOf returns the inode number of a container's mount namespace.
func namespaceOf(t *testing.T, c *harness.Container) uint64 {
	t.Helper()
	var st unix.Stat_t
	harness.Must(t, unix.Stat(filepath.Join("/proc", strconv.Itoa(c.PID()), "ns/mnt"), &st))
	return st.Ino
}
