package integration

import (
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/csi-addons/node-healer/test/harness"
	"github.com/csi-addons/node-healer/test/harness/cluster"
)

// outage is a way in which an API can be away.
type outage struct {
	begin, end func(*cluster.Cluster, testing.TB)
}

var outages = map[string]outage{
	"killed":               {(*cluster.Cluster).KillAPI, (*cluster.Cluster).StartAPI},
	"paused":               {(*cluster.Cluster).PauseAPI, (*cluster.Cluster).ResumeAPI},
	"cut off from its own": {(*cluster.Cluster).PauseEtcd, (*cluster.Cluster).ResumeEtcd},
}

// noAnswer is the text when the API does not answer.
const noAnswer = "the Kubernetes API does not answer"

// refused asks until nothing is healed for want of an answer. Until then the volume is
// healed, and lost again.
func (v *claimed) refused() {
	t := v.m.T
	t.Helper()
	said := ""
	defer func() {
		if t.Failed() {
			t.Log(said)
		}
	}()
	harness.Eventually(t, "nothing is healed without an answer", func() bool {
		said = v.m.answer(v.Request())
		if strings.HasPrefix(said, "healed:") {
			v.Lose()
		}
		return saysAll(said, "abnormal:", "Refused: rebind", noAnswer)
	})
}

// held is a volume whose published mount is lost while a container has it.
func (m *member) held(id string) *claimed {
	m.T.Helper()
	v := m.newClaimed("ext4", id)
	m.Expect("healthy", v.Request())
	m.NewContainer(string(v.pod.UID), v.MountPoint())
	v.Lose()
	return v
}

// heals asks until the volume is healed.
func (v *claimed) heals() {
	v.m.T.Helper()
	harness.Eventually(v.m.T, "it is healed", func() bool { return strings.HasPrefix(v.m.answer(v.Request()), "healed:") })
}

// TestAPIOutage heals what a running container has, refuses at once what only the API
// could allow, and heals that when the API is back. What was forbidden stays
// forbidden, and healthy volumes are answered all the time.
func TestAPIOutage(t *testing.T) {
	for name, api := range outages {
		t.Run(name, func(t *testing.T) {
			m := newMember(t)
			m.Start()
			lost, goes, held := m.lost("lost"), m.lost("goes"), m.held("held")
			well, off, checked := m.newClaimed("ext4", "well"), m.newClaimed("ext4", "off"), m.held("checked")
			m.Expect("healthy", well.Request())
			m.subject(off.claim).Mode("off")
			m.subject(checked.claim).Mode("check")
			cluster.Terminate(t, m.api, goes.pod)
			forbidden := func(when string) {
				t.Helper()
				if said := m.answer(off.Request()); !saysAll(said, "Unknown:", "not checked", "mode off") {
					t.Errorf("%s, a volume that is off: %s", when, said)
				}
				m.Expect("abnormal", goes.Request(), "Refused: rebind")
				m.Expect("abnormal", checked.Request(), "Refused: rebind", "mode check")
			}
			m.forgets()
			harness.Eventually(t, "one is known to be off", func() bool { return saysAll(m.answer(off.Request()), "not checked", "mode off") })
			for _, v := range []*claimed{lost, held} {
				m.Expect("healed", v.Request())
				v.Lose()
			}
			forbidden("before")
			all := m.AskContinuously(2, well.Request())

			m.Transient = nil
			api.begin(m.api, t)
			lost.refused()
			forbidden("in the first moment")
			m.Expect("healed", held.Request())
			held.Lose()
			before, answered := m.Table(), all.Answers()
			for range 3 {
				m.Expect("abnormal", lost.Request(), "Refused: rebind", noAnswer)
				forbidden("later")
			}
			m.SameTable(before)
			m.Expect("healed", held.Request())
			harness.Eventually(t, "healthy volumes are answered for", func() bool { return all.Answers() > answered+10 })

			api.end(m.api, t)
			lost.heals()
			forbidden("when the API is back")
			for _, a := range all.Stop() {
				// Two callers: one of them may find the other at it.
				if a.Err != nil && status.Code(a.Err) != codes.Aborted || a.GetAbnormal() {
					t.Fatalf("a healthy volume: %v, %v", a.NodeHealerResponse, a.Err)
				}
			}
		})
	}
}

// TestLoopDuringAnOutage has volumes lose their published mounts, and a daemon die, while
// the API is away. There is no call: the loop heals what a running container proves to be
// wanted, and changes nothing else until the API is back. Then it heals the rest.
func TestLoopDuringAnOutage(t *testing.T) {
	api := outages["paused"] // which is silent, where the others are quick to say no
	m := newMember(t, "--loop=heal", "--check-interval=10s")
	m.Start()
	var wanted []*claimed
	for _, fs := range []string{"ext4", "tmpfs", "block"} {
		wanted = append(wanted, m.newClaimed(fs, "wanted-"+fs))
	}
	dies := newServed(m.Node, "wanted-fuse")
	wanted = append(wanted, m.claimed(dies.Volume))
	held := m.newClaimed("ext4", "held")
	m.NewContainer(string(held.pod.UID), held.MountPoint())
	for _, v := range append(wanted, held) {
		m.Expect("healthy", v.Request())
	}
	held.Lose()
	harness.Eventually(t, "the server knows what the API says of it", func() bool { return m.loopHealed(held.ID) == 1 })
	before := m.Table()

	api.begin(m.api, t)
	for _, v := range wanted[:3] {
		v.Lose()
	}
	dies.die()
	lost := m.Table()
	held.Lose()
	harness.Eventually(t, "what a container has is healed", func() bool { return m.loopHealed(held.ID) == 2 })
	harness.Eventually(t, "the dead one is reported", func() bool {
		return strings.Contains(m.Log.String(), `"A watched volume changed" volume_id="wanted-fuse" driver="test.csi.example.com" verdict="abnormal"`)
	})
	steps, since := auditOf(t, m.Node), time.Now()
	harness.Eventually(t, "each had its turn again", func() bool {
		checked := lastChecks(t, m.Node)
		return !slices.ContainsFunc(wanted, func(v *claimed) bool { return !checked[v.ID].After(since) })
	})
	m.SameTable(lost)
	if now := auditOf(t, m.Node); len(now) != len(steps) {
		t.Errorf("something was done: %v", now[len(steps):])
	}

	api.end(m.api, t)
	for _, v := range wanted {
		harness.Eventually(t, v.ID+" is healed", func() bool { return m.loopHealed(v.ID) > 0 })
	}
	dies.disk.SameTable(before)
	for _, e := range auditOf(t, m.Node) {
		if e.Caller != "loop" {
			t.Errorf("%s at %s was done for %q", e.Step, e.MountPoint, e.Caller)
		}
	}
}

// loopHealed counts how often the log says that the loop healed a volume.
func (m *member) loopHealed(id string) int {
	return strings.Count(m.Log.String(), `"A watched volume changed" volume_id="`+id+`" driver="`+harness.Driver+`" verdict="healed"`)
}

// TestStartWithoutTheAPI serves and reports without an API, and heals as soon as the
// API answers, without a restart.
func TestStartWithoutTheAPI(t *testing.T) {
	for name, api := range outages {
		t.Run(name, func(t *testing.T) {
			m := newMember(t)
			m.Start()
			well, lost := m.newClaimed("ext4", "well"), m.lost("lost")
			m.Expect("healthy", well.Request())
			m.Stop()

			api.begin(m.api, t)
			m.Start()
			before := m.Table()
			m.Expect("healthy", well.Request())
			m.Expect("abnormal", lost.Request(), "Refused: rebind", "what the cluster wants is not known")
			m.SameTable(before)

			api.end(m.api, t)
			lost.heals()
		})
	}
}

// TestChangesDuringAnOutage changes the cluster during an outage: what counts
// afterwards is the new state.
func TestChangesDuringAnOutage(t *testing.T) {
	m := newMember(t)
	news := m.between()
	m.Start()
	goes, stays := m.lost("goes"), m.lost("stays")
	news.Sever()
	goes.refused()
	cluster.Delete(t, m.api, goes.pod)
	unmounted := goes.MountPoint()
	news.Mend()
	stays.heals()
	if m.mounted(unmounted) {
		t.Error("it healed for a pod that is gone")
	}
	m.Expect("abnormal", goes.Request(), "Refused: rebind")
}

// TestManyOutages leaves neither goroutines nor descriptors behind.
func TestManyOutages(t *testing.T) {
	harness.NeedsFull(t)
	m := newMember(t)
	m.Start()
	v := m.newClaimed("ext4", "steady")
	m.Expect("healthy", v.Request())
	heals := func() {
		t.Helper()
		v.Lose()
		v.heals()
	}
	heals()
	// One that lived through none, with all that it may have.
	few := m.goroutines(t)
	m.Start()
	heals()
	before := openFiles(t, m.PID())
	const outages = 10
	for range outages {
		m.api.KillAPI(t)
		m.Expect("healthy", v.Request())
		m.api.StartAPI(t)
	}
	heals()
	harness.Eventually(t, "descriptors are given back", func() bool { return openFiles(t, m.PID()) <= before })
	many := m.goroutines(t)
	t.Logf("%d goroutines after %d outages, %d after none", many, outages, few)
	if many >= few+outages {
		t.Errorf("%d goroutines after %d outages, %d after none\n%s", many, outages, few, m.Log)
	}
}

// goroutines ends the server and counts the goroutines that it had.
func (m *member) goroutines(t *testing.T) int {
	t.Helper()
	before := len(m.Log.String())
	harness.Must(t, m.Conn.Close())
	harness.Must(t, syscall.Kill(m.PID(), syscall.SIGQUIT))
	if err := m.Wait(); err == nil {
		t.Fatal("it did not quit")
	}
	n := len(regexp.MustCompile(`(?m)^goroutine \d+ `).FindAllString(m.Log.String()[before:], -1))
	if n == 0 {
		t.Fatalf("no goroutines in\n%s", m.Log)
	}
	return n
}

// TestStopWithoutTheAPI ends well within kubelet's grace period.
func TestStopWithoutTheAPI(t *testing.T) {
	manifest, err := os.ReadFile("../../deploy/daemonset/daemonset.yaml")
	harness.Must(t, err)
	found := regexp.MustCompile(`terminationGracePeriodSeconds: (\d+)`).FindSubmatch(manifest)
	seconds, err := strconv.Atoi(string(found[1]))
	harness.Must(t, err)
	for name, api := range outages {
		t.Run(name, func(t *testing.T) {
			m := newMember(t)
			m.Start()
			v := m.lost("lost")
			v.heals()
			v.Lose()
			api.begin(m.api, t)
			v.refused()
			m.stopsWithin(t, time.Duration(seconds)*time.Second, v)

			m.Start() // and has never heard from it
			m.Expect("abnormal", v.Request(), "what the cluster wants is not known")
			m.stopsWithin(t, time.Duration(seconds)*time.Second, v)
		})
	}
}

// stopsWithin terminates the server during a call, and kills it as late as kubelet does.
func (m *member) stopsWithin(t *testing.T, grace time.Duration, v *claimed) {
	t.Helper()
	call := m.Begin(v.Request())
	m.Terminate()
	pid := m.PID()
	kubelet := time.AfterFunc(grace, func() { _ = syscall.Kill(pid, syscall.SIGKILL) })
	defer kubelet.Stop()
	if err := m.Wait(); err != nil {
		t.Errorf("the server ended with %v\n%s", err, m.Log)
	}
	if strings.Contains(m.Log.String(), "Stopped before everything had ended") {
		t.Errorf("it was cut short\n%s", m.Log)
	}
	if err := call.Err(); err != nil && status.Code(err) != codes.Unavailable && !strings.Contains(err.Error(), "shutting down") {
		t.Errorf("the last call: %v", err)
	}
}

// TestDenialIsNoOutage refuses also what a running container has: the API answered
// that it no longer knows the account.
func TestDenialIsNoOutage(t *testing.T) {
	m := newMember(t)
	m.Start()
	v := m.held("held")
	v.heals() // after an outage in another test the API's first list of pods may take seconds
	v.Lose()
	account, err := m.api.Admin().CoreV1().ServiceAccounts(ownNamespace).Get(t.Context(), ownAccount, metav1.GetOptions{})
	harness.Must(t, err)
	cluster.Delete(t, m.api, account) // the next member applies the manifests
	// The API believes a token for some seconds after it has seen it.
	harness.Eventually(t, "the token is refused", func() bool {
		said := m.answer(v.Request())
		if strings.HasPrefix(said, "healed:") {
			v.Lose()
		}
		return saysAll(said, "abnormal:", "not authenticated (401)")
	})
	before := m.Table()
	m.Expect("abnormal", v.Request(), "not authenticated (401)")
	m.SameTable(before)
}
