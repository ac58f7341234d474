package gateway

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/klog/v2"
)

// conditioned is a Node whose condition is kept, by what the server's metrics say.
type conditioned struct {
	t   *testing.T
	api *fake.Clientset
	// mu guards what the server answers.
	mu   sync.Mutex
	page string
	// unchecked is true while the server has not checked all volumes.
	unchecked bool
	gone      bool
	// off is true while the server's loop is.
	off bool
	end func()
}

// newConditioned is one whose server answers page from the start.
func newConditioned(t *testing.T, page string, already ...corev1.NodeCondition) *conditioned {
	t.Helper()
	theirs := corev1.NodeCondition{Type: corev1.NodeReady, Status: corev1.ConditionTrue}
	c := &conditioned{t: t, page: page, api: fake.NewClientset(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-1"}, Status: corev1.NodeStatus{Conditions: append(already, theirs)}})}
	c.start()
	return c
}

func (c *conditioned) start() {
	n := nodeCondition{node: "node-1", nodes: c.api.CoreV1().Nodes(), since: map[inaccessible]time.Time{}}
	n.server = func(context.Context, string) (*http.Response, error) {
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.gone {
			return nil, errors.New("no such socket")
		}
		all := 1
		if c.unchecked {
			all = 0
		}
		if c.off {
			return &http.Response{StatusCode: http.StatusOK, Body: http.NoBody}, nil
		}
		return &http.Response{StatusCode: http.StatusOK, Body: io.NopCloser(strings.NewReader(
			fmt.Sprintf("# TYPE node_healer_volumes gauge\n%s# TYPE node_healer_loop_checked_all gauge\nnode_healer_loop_checked_all %d\n", c.page, all)))}, nil
	}
	ctx, cancel := context.WithCancel(c.t.Context())
	done := make(chan struct{})
	go func() { defer close(done); n.run(ctx) }()
	c.end = func() { cancel(); <-done }
}

// answers changes what the server answers.
func (c *conditioned) answers(change func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	change()
}

// after returns what the Node says after a time: status, reason and message; empty: nothing.
func (c *conditioned) after(wait time.Duration) (text string, condition corev1.NodeCondition) {
	c.t.Helper()
	time.Sleep(wait)
	synctest.Wait()
	node, err := c.api.CoreV1().Nodes().Get(c.t.Context(), "node-1", metav1.GetOptions{})
	must(c.t, err)
	ready := false
	for _, k := range node.Status.Conditions {
		if k.Type == problem {
			text, condition = string(k.Status)+" "+k.Reason+": "+k.Message, k
		}
		ready = ready || k.Type == corev1.NodeReady
	}
	if !ready {
		c.t.Error("kubelet's condition is gone")
	}
	return text, condition
}

func (c *conditioned) says(wait time.Duration, want string) corev1.NodeCondition {
	c.t.Helper()
	got, condition := c.after(wait)
	if got != want {
		c.t.Errorf("got %q, want %q", got, want)
	}
	return condition
}

func (c *conditioned) writes() (n int) {
	for _, a := range c.api.Actions() {
		if a.GetVerb() == "patch" {
			n++
		}
	}
	return n
}

const (
	gone     = `node_healer_volumes{condition="DeviceMissing",driver="d",status="Inaccessible"} 2` + "\n"
	lost     = `node_healer_volumes{condition="ReplicaLost",driver="d",status="DataLoss"} 1` + "\n"
	degraded = `node_healer_volumes{condition="OutOfSpace",driver="d",status="Degraded"} 3` + "\n"
	well     = `node_healer_volumes{condition="Healthy",driver="d",status="Healthy"} 9` + "\n"
)

func TestNodeSaysThatVolumesCannotBeUsed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newConditioned(t, degraded+well)
		c.says(time.Hour, "")
		c.answers(func() { c.page += gone })
		c.says(50*time.Second, "")
		first := c.says(time.Minute, "True DeviceMissing: DeviceMissing: 2 of d")
		c.answers(func() { c.page += lost })
		c.says(time.Minute, "True DeviceMissing: DeviceMissing: 2 of d")
		worse := c.says(time.Minute, "True ReplicaLost: ReplicaLost: 1 of d, DeviceMissing: 2 of d")
		if !worse.LastTransitionTime.Equal(&first.LastTransitionTime) || !first.LastHeartbeatTime.Before(&worse.LastHeartbeatTime) {
			t.Errorf("got %+v after %+v", worse, first)
		}
		c.says(4*time.Minute, "True ReplicaLost: ReplicaLost: 1 of d, DeviceMissing: 2 of d")
		if n := c.writes(); n != 2 {
			t.Errorf("%d writes", n)
		}
		c.answers(func() { c.page = well })
		if healthy := c.says(time.Minute, "False NoVolumeProblem: the node's volumes can be used"); !worse.LastTransitionTime.Before(&healthy.LastTransitionTime) {
			t.Errorf("got %+v", healthy)
		}
		c.end()
		c.says(0, "")
	})
}

// TestNodeConditionStandsWhileTheReasonChanges: volumes that cannot be used for another reason than
// before do not work again.
func TestNodeConditionStandsWhileTheReasonChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newConditioned(t, gone)
		first := c.says(2*time.Minute, "True DeviceMissing: DeviceMissing: 2 of d")
		c.answers(func() { c.page = lost })
		if now := c.says(20*time.Second, "True ReplicaLost: ReplicaLost: 1 of d"); !now.LastTransitionTime.Equal(&first.LastTransitionTime) {
			t.Errorf("got %+v after %+v", now, first)
		}
		c.says(4*time.Minute, "True ReplicaLost: ReplicaLost: 1 of d")
		if n := c.writes(); n != 2 {
			t.Errorf("%d writes", n)
		}
		c.end()
	})
}

// TestNodeConditionOfANodeThatIsRegisteredAgain, while the pods on it go on.
func TestNodeConditionOfANodeThatIsRegisteredAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newConditioned(t, gone)
		first := c.says(2*time.Minute, "True DeviceMissing: DeviceMissing: 2 of d")
		ready := corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}}
		_, err := c.api.CoreV1().Nodes().UpdateStatus(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-1", UID: "another"}, Status: ready}, metav1.UpdateOptions{})
		must(t, err)
		if now := c.says(5*time.Minute, "True DeviceMissing: DeviceMissing: 2 of d"); !now.LastTransitionTime.Equal(&first.LastTransitionTime) {
			t.Errorf("got %+v after %+v", now, first)
		}
		c.end()
	})
}

// TestNodeConditionOfOneThatWasKilled is taken over as it is.
func TestNodeConditionOfOneThatWasKilled(t *testing.T) {
	for name, tc := range map[string]struct {
		status     corev1.ConditionStatus
		page, want string
	}{
		"still sick":     {corev1.ConditionTrue, gone, "True DeviceMissing: DeviceMissing: 2 of d"},
		"healthy":        {corev1.ConditionTrue, well, "False NoVolumeProblem: the node's volumes can be used"},
		"no metrics":     {corev1.ConditionTrue, "{", "True Old: old"},
		"just gone sick": {corev1.ConditionFalse, gone, "False NoVolumeProblem: the node's volumes can be used"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newConditioned(t, tc.page, corev1.NodeCondition{Type: problem, Status: tc.status, Reason: "Old", Message: "old", LastTransitionTime: metav1.NewTime(time.Now().Add(-time.Hour))})
				c.says(20*time.Second, tc.want)
				c.end()
				c.says(0, "")
			})
		})
	}
}

// TestNodeConditionStandsWithoutAnAnswer of the server.
func TestNodeConditionStandsWithoutAnAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newConditioned(t, gone)
		c.says(2*time.Minute, "True DeviceMissing: DeviceMissing: 2 of d")
		c.answers(func() { c.gone = true })
		c.says(time.Hour, "True DeviceMissing: DeviceMissing: 2 of d")
		c.end()
		c.says(0, "")
	})
}

// TestEachOutageOfTheServerIsLogged once, also one with the error of the last one.
func TestEachOutageOfTheServerIsLogged(t *testing.T) {
	var logged bytes.Buffer
	t.Cleanup(klog.CaptureState().Restore)
	klog.LogToStderr(false)
	klog.SetOutput(io.Discard)
	klog.SetOutputBySeverity("INFO", &logged) // which gets all
	synctest.Test(t, func(t *testing.T) {
		c := newConditioned(t, well)
		for range 2 {
			c.says(time.Minute, "")
			c.answers(func() { c.gone = true })
			c.says(time.Minute, "")
			c.answers(func() { c.gone = false })
		}
		c.end()
	})
	klog.Flush()
	if n := strings.Count(logged.String(), "no such socket"); n != 2 {
		t.Errorf("logged %d times", n)
	}
}

// TestNodeConditionOfALoopThatIsOff is nobody's to end, and comes back with the loop.
func TestNodeConditionOfALoopThatIsOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newConditioned(t, gone)
		c.says(2*time.Minute, "True DeviceMissing: DeviceMissing: 2 of d")
		c.answers(func() { c.off = true })
		c.says(time.Hour, "")
		c.answers(func() { c.off = false })
		c.says(50*time.Second, "")
		c.says(time.Minute, "True DeviceMissing: DeviceMissing: 2 of d")
		if n := c.writes(); n != 3 {
			t.Errorf("%d writes", n)
		}
		c.end()
	})
}

// TestNodeConditionStandsWhileAServerIsNew, which has not checked all volumes yet, and no longer.
func TestNodeConditionStandsWhileAServerIsNew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newConditioned(t, gone)
		first := c.says(2*time.Minute, "True DeviceMissing: DeviceMissing: 2 of d")
		c.answers(func() { c.page, c.unchecked = "", true })
		c.says(time.Hour, "True DeviceMissing: DeviceMissing: 2 of d")
		c.answers(func() { c.page, c.unchecked = gone, false })
		if now := c.says(4*time.Minute, "True DeviceMissing: DeviceMissing: 2 of d"); !now.LastTransitionTime.Equal(&first.LastTransitionTime) || c.writes() != 2 { // once more after an hour
			t.Errorf("got %+v after %d writes", now, c.writes())
		}
		c.answers(func() { c.page, c.unchecked = well, true })
		c.says(time.Minute, "True DeviceMissing: DeviceMissing: 2 of d")
		c.answers(func() { c.unchecked = false })
		c.says(problemEvery, "False NoVolumeProblem: the node's volumes can be used")
		c.end()
	})
}
