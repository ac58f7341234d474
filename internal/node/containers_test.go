package node

import (
	"context"
	"errors"
	"os/exec"
	"slices"
	"testing"
	"time"

	"golang.org/x/sync/singleflight"
	"golang.org/x/sys/unix"

	"github.com/csi-addons/node-healer/internal/ops"
	"github.com/csi-addons/node-healer/internal/worker"
	"github.com/csi-addons/node-healer/pkg/facts"
)

// When a daemon that served many volumes dies, all are asked about at once.
func TestWalksAreSharedByThoseWhoWait(t *testing.T) {
	realKernel(t)
	n, _ := newNode(t)
	made := 0
	begun, goOn := make(chan struct{}), make(chan struct{})
	n.walks.walk = func(context.Context, storage) (ops.ProcessesAnswer, error) {
		begun <- struct{}{}
		<-goOn
		made++
		return ops.ProcessesAnswer{Unread: made}, nil
	}
	next := func() <-chan singleflight.Result { return n.nextWalk(t.Context(), containerWalk) }
	first := next()
	<-begun
	meanwhile := []<-chan singleflight.Result{next(), next(), next()}
	goOn <- struct{}{}
	<-begun
	later := next()
	close(goOn)
	<-begun
	for i, walk := range append([]<-chan singleflight.Result{first, later}, meanwhile...) {
		want := []int{1, 3, 2, 2, 2}[i]
		if got := <-walk; got.Err != nil || got.Val.(ops.ProcessesAnswer).Unread != want {
			t.Errorf("caller %d got walk %+v, want %d", i, got, want)
		}
	}
}

// walked is a walk that finds this.
func walked(a ops.ProcessesAnswer) func(context.Context, storage) (ops.ProcessesAnswer, error) {
	return func(context.Context, storage) (ops.ProcessesAnswer, error) { return a, nil }
}

func TestInContainers(t *testing.T) {
	realKernel(t)
	n, _ := newNode(t)
	in := func(pod, id string) facts.Workload { return facts.Workload{PodUID: pod, ContainerID: id} }
	n.walks.walk = walked(ops.ProcessesAnswer{Cut: true, Containers: []facts.Container{
		{Workload: in(podUID, "a"), Foreign: true, Started: time.Second},
		{Workload: in(podUID, ""), Sandbox: "runsc", Started: time.Minute},
		{Workload: in(podUID, "p"), Foreign: true, Pause: true}, // older than any that was started anew, and without the volume
		{Workload: in("other", "b"), Foreign: true},
		{Workload: in("", ""), Foreign: true},
	}})
	for name, tc := range map[string]struct {
		pods []string
		want []facts.Unverified
	}{
		"of a pod": {
			pods: []string{podUID},
			want: []facts.Unverified{
				{Why: facts.WhyScanCut},
				{Workload: facts.Workload{PodUID: podUID, ContainerID: "a"}, Started: time.Second, Why: facts.WhyForeign},
				{Workload: facts.Workload{PodUID: podUID}, Started: time.Minute, Why: facts.WhySandbox, Detail: "runsc"},
			},
		},
		"of all pods": {
			want: []facts.Unverified{
				{Why: facts.WhyScanCut},
				{Workload: facts.Workload{PodUID: podUID, ContainerID: "a"}, Started: time.Second, Why: facts.WhyForeign},
				{Workload: facts.Workload{PodUID: podUID}, Started: time.Minute, Why: facts.WhySandbox, Detail: "runsc"},
				{Workload: facts.Workload{PodUID: "other", ContainerID: "b"}, Why: facts.WhyForeign},
			},
		},
		"of no pods":   {pods: []string{}, want: []facts.Unverified{{Why: facts.WhyScanCut}}},
		"of some pods": {pods: []string{"third"}, want: []facts.Unverified{{Why: facts.WhyScanCut}}},
	} {
		found, err := n.InContainers(t.Context(), tc.pods, ofVolume, false)
		if err != nil || !slices.Equal(found.Unverified, tc.want) || len(found.Mounts) != 0 {
			t.Errorf("%s: %+v, %v", name, found, err)
		}
	}
}

// While the mounts stay as they are, a walk answers for all that asks for what started before.
func TestWalkCountsUntilMountsChange(t *testing.T) {
	realKernel(t)
	n, root := newNode(t)
	keepsTopology(t, n.Namespace)
	t.Cleanup(func() { _ = unix.Unmount(root, unix.MNT_DETACH) })
	walks, cut := 0, false
	n.walks.walk = func(context.Context, storage) (ops.ProcessesAnswer, error) {
		walks++
		return ops.ProcessesAnswer{Cut: cut}, nil
	}
	walked := func(before bool) bool {
		made := walks
		_, err := n.InContainers(t.Context(), nil, ofVolume, before)
		done(t, err)
		return walks > made
	}
	// Other tests mount and unmount beside this one.
	remembered := func() (once bool) {
		for range 1000 {
			once = once || !walked(true)
		}
		return once
	}
	if !remembered() {
		t.Error("each call walks")
	}
	if !walked(false) {
		t.Error("who asks for all containers that run now got an earlier walk")
	}
	for _, tc := range []struct { // in this order: what is mounted is then unmounted
		name   string
		change func()
	}{
		{"a mount", func() { put(t, root) }},
		{"an end of a mount", func() { done(t, unix.Unmount(root, 0)) }},
		{"a mount's new attributes", func() { _, _ = step(t.Context(), n, ops.Finalize, ops.FinalizeQuery{}) }},
	} {
		remembered()
		tc.change()
		if !walked(true) {
			t.Errorf("%s: an earlier walk counts", tc.name)
		}
	}
	cut = true
	n.changed()
	if remembered() {
		t.Error("a walk that was cut short counts")
	}
}

// That one caller left is no answer for those who still wait.
func TestWalkOfACallerWhoLeft(t *testing.T) {
	realKernel(t)
	n, _ := newNode(t)
	ctx := t.Context()
	gone, leave := context.WithCancel(ctx)
	leave()
	var stays <-chan singleflight.Result
	done(t, n.probes.serialize(ctx, containerWalk, func() error {
		if _, err := n.InContainers(gone, nil, ofVolume, false); !errors.Is(err, context.Canceled) {
			t.Errorf("who left got %v", err)
		}
		stays = n.nextWalk(ctx, containerWalk)
		return nil
	}))
	if walk := <-stays; walk.Err != nil || !walk.Shared {
		t.Errorf("who stays got %+v", walk)
	}
}

// A container that has the volume mounted is held by a pidfd.
func TestHolder(t *testing.T) {
	realKernel(t)
	n, _ := newNode(t)
	at := t.TempDir()
	pid, end := propagatedMounts(t, `mount -t tmpfs x "$1"`, []string{at})
	c, dev := containerOf(t, pid), devAt(t, pid, at)
	ended := exec.Command("true")
	if err := ended.Run(); err != nil {
		t.Fatal(err)
	}
	before := countFDs(t)
	for name, tc := range map[string]struct {
		dev    facts.Dev
		change func(*facts.Container)
		want   bool
	}{
		"mounted":           {dev: dev, want: true},
		"another device":    {dev: facts.Dev{Major: dev.Major, Minor: dev.Minor + 1000}},
		"another namespace": {dev: dev, change: func(c *facts.Container) { c.Namespace++ }},
		"another container": {dev: dev, change: func(c *facts.Container) { c.Dir += "x" }},
		"another pod":       {dev: dev, change: func(c *facts.Container) { c.PodUID = podUID }},
		"has ended":         {dev: dev, change: func(c *facts.Container) { c.PID = ended.Process.Pid }},
	} {
		asked := c
		if tc.change != nil {
			tc.change(&asked)
		}
		h, err := n.holder(t.Context(), tc.dev, []facts.Container{asked})
		if err != nil || (h != nil) != tc.want {
			t.Errorf("%s: %+v, %v", name, h, err)
		}
		if h != nil {
			if h.PID != pid || h.Alive() != nil {
				t.Errorf("%s: %+v, %v", name, h, h.Alive())
			}
			h.Close()
		}
	}
	for _, cut := range []bool{false, true} { // "none" is no answer after a walk that did not end
		walk := ops.ProcessesAnswer{Containers: []facts.Container{c}, Cut: cut}
		if h, err := n.holderAmong(t.Context(), walk, c.PodUID, facts.Dev{Minor: 1}); h != nil || (err != nil) != cut {
			t.Errorf("none, cut: %v: %+v, %v", cut, h, err)
		}
		h, err := n.holderAmong(t.Context(), walk, c.PodUID, dev)
		if err != nil {
			t.Fatal(err)
		}
		h.Close()
	}
	eventually(t, "no descriptors are left but those of the pool", func() bool { return countFDs(t) <= before+4 })
	h, err := n.holder(t.Context(), dev, []facts.Container{c})
	if err != nil || h == nil {
		t.Fatal(h, err)
	}
	defer h.Close()
	if end(); h.Alive() == nil {
		t.Error("it is alive after its end")
	}
}

func TestInPods(t *testing.T) {
	n, _ := newNode(t)
	own := facts.Container{Workload: facts.Workload{PodUID: podUID}, Foreign: true}
	pause := facts.Container{Workload: facts.Workload{PodUID: "another"}, PID: 1, Pause: true}
	service := facts.Container{Workload: facts.Workload{Dir: "/system.slice/x.service"}, PID: 3}
	for cut, want := range map[bool][]facts.Container{false: {own, pause}, true: {own, pause, {}}} {
		n.walks.walk = func(context.Context, storage) (ops.ProcessesAnswer, error) {
			return ops.ProcessesAnswer{Containers: []facts.Container{own, service, pause}, Cut: cut}, nil
		}
		if got, err := n.InPods(t.Context()); err != nil || !slices.Equal(got, want) {
			t.Errorf("cut short: %t: %+v, %v", cut, got, err)
		}
	}
}

func TestHolderOfNothing(t *testing.T) {
	n := &Node{}
	for _, pod := range []string{"", podUID} {
		if h, err := n.Holder(t.Context(), pod, facts.Dev{}); h != nil || err != nil {
			t.Errorf("%q: %+v, %v", pod, h, err)
		}
	}
	if h := n.HolderAt(t.Context(), facts.ContainerMount{Container: facts.Container{PID: 1}, Mount: facts.Mount{Dev: facts.Dev{Major: 8, Minor: 1}}}); h != nil {
		t.Errorf("outside of pods: %+v", h)
	}
}

// A pod that has a thread of a walk wait is left out of the next walks until that thread has ended. With many
// such threads no walk begins, as each is a process that cannot be killed.
func TestWalksThatArePartlyLeft(t *testing.T) {
	n, _ := newNode(t)
	w := &n.walks
	var stuck []stuckWorker
	left := func(pod string) {
		t.Helper()
		stuck = append(stuck, make(stuckWorker))
		done(t, w.walked(ops.ProcessesAnswer{Blocked: []string{pod}, Known: []facts.FUSEDaemon{{PID: 7}}}, errors.Join(worker.ErrLeft, stuck[len(stuck)-1])))
	}
	left("a")
	left("b")
	if pods, err := w.skip(); err != nil || !slices.Equal(pods, []string{"a", "b"}) || len(w.known) != 1 {
		t.Errorf("%v, %v, %v", pods, err, w.known)
	}
	close(stuck[0])
	if pods, err := w.skip(); err != nil || !slices.Equal(pods, []string{"b"}) {
		t.Errorf("one has ended: %v, %v", pods, err)
	}
	for len(w.left) < maxLeft {
		left("c")
	}
	if _, err := w.skip(); !errors.Is(err, worker.ErrStuck) {
		t.Errorf("one more: %v", err)
	}
	close(stuck[1])
	if _, err := w.skip(); err != nil {
		t.Error(err)
	}
	if err := w.walked(ops.ProcessesAnswer{}, worker.ErrTimeout); !errors.Is(err, worker.ErrTimeout) || len(w.known) != 1 {
		t.Errorf("a walk without an answer: %v, %v", err, w.known)
	}
}

// Calls that ask all the time get one walk after the other, with time for others between.
func TestWalksHaveAShare(t *testing.T) {
	realKernel(t)
	n, _ := newNode(t)
	share := n.walks.shares[containerWalk]
	share.SetLimit(100 * walkShare) // or the second one waits for long
	n.walks.walk = func(context.Context, storage) (a ops.ProcessesAnswer, err error) {
		if left := share.Tokens(); left < 0 {
			t.Errorf("a walk begins while %g ms are owed", -left)
		}
		share.ReserveN(time.Now(), walkBurst) // as long ones do
		share.ReserveN(time.Now(), walkBurst)
		return a, nil
	}
	for range 2 {
		if got := <-n.nextWalk(t.Context(), containerWalk); got.Err != nil {
			t.Error(got.Err)
		}
	}
}
