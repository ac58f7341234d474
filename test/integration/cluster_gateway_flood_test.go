package integration

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc/metadata"

	"github.com/csi-addons/node-healer/test/harness"
)

// connFlood opens connections that get nowhere, some with invented tokens, as fast as it
// can, until it has opened its most.
type connFlood struct {
	most    int
	stop    chan struct{}
	running sync.WaitGroup
	mu      sync.Mutex
	conns   []net.Conn
}

// startConnFlood starts a flood of connections to the gateway, which end() ends.
func (r *reachable) startConnFlood(t *testing.T, most int) (f *connFlood, end func()) {
	f = &connFlood{most: most, stop: make(chan struct{})}
	for _, then := range []func(net.Conn){
		func(net.Conn) {}, // says nothing
		func(c net.Conn) { _, _ = c.Write([]byte{0x16, 3, 1, 2, 0, 1}) },              // begins a greeting
		func(c net.Conn) { _, _ = fmt.Fprint(c, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n") }, // plain HTTP/2
		func(c net.Conn) { _ = tls.Client(c, trustful()).Handshake() },                // TLS, and nothing more
		func(net.Conn) {
			made := r.dial("made.up")
			_ = identify(briefly(t), made)
			harness.Must(t, made.Close())
		}, // a wrong token
	} {
		f.running.Go(func() { f.open(r.gateway.Address, then) })
	}
	return f, sync.OnceFunc(func() {
		close(f.stop)
		f.running.Wait()
		for _, c := range f.conns {
			_ = c.Close()
		}
	})
}

// open opens one connection after the other, does with each what then does, and keeps it
// open.
func (f *connFlood) open(address string, then func(net.Conn)) {
	for f.opened() < f.most {
		select {
		case <-f.stop:
			return
		default:
		}
		c, err := net.Dial("tcp", address)
		if err != nil {
			continue // the backlog is full
		}
		f.mu.Lock()
		f.conns = append(f.conns, c)
		f.mu.Unlock()
		_ = c.SetDeadline(time.Now().Add(100 * time.Millisecond))
		then(c)
	}
}

func (f *connFlood) opened() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.conns)
}

// TestFloodOfConnections floods the gateway with connections. The gateway keeps to its
// limits, the server does not notice, and after the flood the controller is admitted.
func TestFloodOfConnections(t *testing.T) {
	const flood = 5_000
	r := newReachable(t)
	v := r.newClaimed("ext4", "besieged")
	if err := heal(v)(within(t), r.dial(r.controllerToken())); err != nil {
		t.Fatal(err)
	}
	f, end := r.startConnFlood(t, flood)
	defer end()
	most, server, answers := 0, descriptors(t, r.PID()), 0
	for until := time.Now().Add(harness.Slowly(10 * time.Second)); f.opened() < flood && time.Now().Before(until); answers++ {
		began := time.Now()
		r.Expect("healthy", v.Request())
		if took := time.Since(began); took > harness.Slowly(5*time.Second) {
			t.Errorf("a call on the socket took %s", took)
		}
		most = max(most, descriptors(t, r.gateway.PID()))
	}
	if now := descriptors(t, r.PID()); now > server+20 {
		t.Errorf("the server has %d descriptors, and had %d before", now, server)
	}
	t.Logf("%d connections, %d descriptors of the gateway at most, %d answers on the socket, gateway at %d MiB",
		f.opened(), most, answers, residentMiB(t, r.gateway.PID()))
	if most > 256+40 {
		t.Errorf("the gateway had %d descriptors open", most)
	}
	end()
	harness.Eventually(t, "the controller is let in", func() bool { return identify(briefly(t), r.dial(r.controllerToken())) == nil })
}

// TestFloodOfTokens invents tokens as fast as it can. Few of them reach the API or the
// log, and the socket is served meanwhile.
func TestFloodOfTokens(t *testing.T) {
	harness.NeedsFull(t)
	r := newReachable(t)
	v := r.newClaimed("ext4", "flooded")
	before, begin := r.tokenReviews(), time.Now()
	var flood sync.WaitGroup
	var calls atomic.Int64
	stop := make(chan struct{})
	for range 4 {
		conn := r.dial("")
		for range 4 {
			flood.Go(func() {
				for {
					select {
					case <-stop:
						return
					default:
						_ = identify(bearing(t.Context(), fmt.Sprint("made.up.", calls.Add(1))), conn)
					}
				}
			})
		}
	}
	for time.Since(begin) < 5*time.Second {
		r.Expect("healthy", v.Request())
	}
	close(stop)
	flood.Wait()
	seconds := time.Since(begin).Seconds()
	asked := r.tokenReviews() - before
	t.Logf("%d calls with tokens that are made up: %.0f TokenReviews in %.1f s", calls.Load(), asked, seconds)
	if most := 60 + 20*seconds; asked > most || calls.Load() < 1000 {
		t.Errorf("the API was asked about %.0f of %d tokens, want %.0f at most", asked, calls.Load(), most)
	}
	if lines := strings.Count(r.gateway.Log.String(), "Caller refused"); lines > 3 {
		t.Errorf("%d lines in the log", lines)
	}
	harness.Eventually(t, "the controller is let in", func() bool { return identify(briefly(t), r.dial(r.controllerToken())) == nil })
}

// briefly is the context of a call that need not succeed.
func briefly(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	t.Cleanup(cancel)
	return ctx
}

func bearing(ctx context.Context, token string) context.Context {
	return metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+token)
}

// tokenReviews counts those that the API has answered, from any caller.
func (r *reachable) tokenReviews() (count float64) {
	r.T.Helper()
	for line := range strings.Lines(r.api.Kubectl(r.T, "get", "--raw", "/metrics")) {
		if strings.HasPrefix(line, "apiserver_request_total{") && strings.Contains(line, `resource="tokenreviews"`) {
			n, err := strconv.ParseFloat(strings.TrimSpace(line[strings.LastIndexByte(line, ' ')+1:]), 64)
			harness.Must(r.T, err)
			count += n
		}
	}
	return count
}

func descriptors(t *testing.T, pid int) int {
	t.Helper()
	open, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	harness.Must(t, err)
	return len(open)
}

func residentMiB(t *testing.T, pid int) int {
	t.Helper()
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", pid))
	harness.Must(t, err)
	pages, err := strconv.Atoi(strings.Fields(string(raw))[1])
	harness.Must(t, err)
	return pages * os.Getpagesize() >> 20
}
