package harness

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/csi-addons/node-healer/pkg/api/healerpb"
)

// Call asks for a volume with a deadline of its own. The message of the answer is as the server
// says it in full.
func (n *Node) Call(req *healerpb.NodeHealerRequest) (*healerpb.NodeHealerResponse, error) {
	ctx, cancel := context.WithTimeout(context.Background(), Patience)
	defer cancel()
	return n.call(ctx, req)
}

func (n *Node) call(ctx context.Context, req *healerpb.NodeHealerRequest) (*healerpb.NodeHealerResponse, error) {
	var trailer metadata.MD
	a, err := healerpb.NewHealerNodeClient(n.Conn).NodeHealer(ctx, req, grpc.Trailer(&trailer))
	if all := trailer.Get(healerpb.TrailerMessage); err == nil && len(all) == 1 {
		if short, _, _ := strings.Cut(a.GetMessage(), ":"); len(a.GetMessage()) >= maxMessage || !strings.HasPrefix(all[0], short+":") {
			n.T.Errorf("%d bytes: %s", len(a.GetMessage()), a.GetMessage())
		}
		a.Message = all[0]
	}
	return a, err
}

// maxMessage is what the message of an answer stays below, in bytes.
const maxMessage = 400

// Expect asks for a volume and compares the verdict (healthy, healed, abnormal, not judged)
// and parts of the message.
func (n *Node) Expect(verdict string, req *healerpb.NodeHealerRequest, has ...string) {
	n.T.Helper()
	for begun := time.Now(); ; time.Sleep(Pause(begun)) {
		a, err := n.callUntilFree(req)
		if err != nil {
			n.T.Fatalf("NodeHealer: %v\n%s", err, n.Log)
		}
		wrong := ""
		for _, h := range has {
			if !strings.Contains(a.GetMessage(), h) {
				wrong = fmt.Sprintf("the message lacks %q: %q", h, a.GetMessage())
			}
		}
		if !strings.HasPrefix(a.GetMessage(), verdict+":") || a.GetAbnormal() != (verdict == "abnormal" || verdict == "not judged") {
			wrong = fmt.Sprintf("want %s, got abnormal=%v %q\n%s", verdict, a.GetAbnormal(), a.GetMessage(), n.Log)
		}
		if wrong == "" {
			return
		}
		if !n.IsTransient(a.GetMessage(), has...) || time.Since(begun) > Patience {
			n.T.Fatal(wrong)
		}
	}
}

// BusyAPI is what is Transient in a cluster: the API has two seconds to answer a server, and five to
// answer a gateway.
var BusyAPI = []string{
	"the Kubernetes API does not answer", "what the cluster wants is not known", "the Kubernetes API cannot be asked about callers now",
}

// IsTransient is true for a message, or the text of an error, that only a busy machine brings about
// (see Transient), and that is not what the test expects.
func (n *Node) IsTransient(message string, has ...string) bool {
	return slices.ContainsFunc(n.Transient, func(part string) bool { return strings.Contains(message, part) && !slices.Contains(has, part) })
}

// callUntilFree is Call. On a node with a loop, which may just save what a check showed, and turn
// the call away meanwhile, it calls again.
func (n *Node) callUntilFree(req *healerpb.NodeHealerRequest) (a *healerpb.NodeHealerResponse, err error) {
	loops := slices.ContainsFunc(n.Args, func(arg string) bool { return strings.HasPrefix(arg, "--loop=") })
	Eventually(n.T, "the volume is free", func() bool {
		a, err = n.Call(req)
		return !loops || status.Code(err) != codes.Aborted
	})
	return a, err
}

// Message returns what a call says, or its error.
func (n *Node) Message(req *healerpb.NodeHealerRequest) string {
	a, err := n.Call(req)
	if err != nil {
		return err.Error()
	}
	return a.GetMessage()
}

// Begun is a call that goes on while the test does something else.
type Begun struct {
	n      *Node
	leave  context.CancelFunc
	done   chan struct{}
	answer *healerpb.NodeHealerResponse
	err    error
	worker int
}

// Begin calls in the background.
func (n *Node) Begin(req *healerpb.NodeHealerRequest) *Begun {
	ctx, cancel := context.WithTimeout(context.Background(), Patience)
	b := &Begun{n: n, leave: cancel, done: make(chan struct{})}
	go func() {
		defer close(b.done)
		defer cancel()
		b.answer, b.err = n.call(ctx, req)
	}()
	return b
}

// BeginUntil calls in the background and waits until something is seen of the call. One that a busy
// machine kept from it begins again.
func (n *Node) BeginUntil(req *healerpb.NodeHealerRequest, what string, seen func() bool) *Begun {
	n.T.Helper()
	b := n.Begin(req)
	Eventually(n.T, what, func() bool {
		select {
		case <-b.done:
			if n.IsTransient(b.answer.GetMessage()) {
				b = n.Begin(req)
			}
		default:
		}
		return seen()
	})
	return b
}

// BeginAndStop calls in the background and waits for a worker to stop at an
// instant of Pause.
func (n *Node) BeginAndStop(req *healerpb.NodeHealerRequest) *Begun {
	n.T.Helper()
	worker := 0
	b := n.BeginUntil(req, "a worker stops at "+n.Pause, func() bool {
		worker = n.paused()
		return worker != 0
	})
	b.worker = worker
	return b
}

// Resume lets the stopped worker go on.
func (b *Begun) Resume() {
	b.n.T.Helper()
	Must(b.n.T, unix.Kill(b.worker, unix.SIGCONT))
}

// KillWorker kills the stopped worker.
func (b *Begun) KillWorker() {
	b.n.T.Helper()
	Must(b.n.T, unix.Kill(b.worker, unix.SIGKILL))
}

// Leave takes the caller away.
func (b *Begun) Leave() {
	b.leave()
	<-b.done
}

// Answer waits for what the call gave: nil when that is an error.
func (b *Begun) Answer() *healerpb.NodeHealerResponse {
	<-b.done
	return b.answer
}

// Err waits for the call's error.
func (b *Begun) Err() error {
	<-b.done
	return b.err
}

// Unstopped is Answer, and fails the test when a worker gets as far as the next
// instant at which it would stop.
func (b *Begun) Unstopped() *healerpb.NodeHealerResponse {
	b.n.T.Helper()
	b.whenPaused(func(int) { b.n.T.Fatalf("the step went on, to one of %s", b.n.Pause) })
	return b.answer
}

// LetGo is Answer, and lets every worker go on that stops meanwhile.
func (b *Begun) LetGo() *healerpb.NodeHealerResponse {
	b.whenPaused(func(worker int) { _ = unix.Kill(worker, unix.SIGCONT) })
	return b.answer
}

// whenPaused waits for the call and acts on each worker that stops meanwhile.
func (b *Begun) whenPaused(act func(worker int)) {
	b.n.T.Helper()
	for begun := time.Now(); ; {
		select {
		case <-b.done:
			return
		case <-time.After(Pause(begun)):
		}
		if worker := b.n.paused(); worker != 0 {
			act(worker)
			begun = time.Now()
		}
	}
}

// Starve lets the stopped worker go on with no memory to be had.
func (b *Begun) Starve(c *Cgroup) {
	b.n.T.Helper()
	c.Take(b.worker)
	c.Limit(1)
	b.Resume()
}
