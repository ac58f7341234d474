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

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"github.com/csi-addons/node-healer/test/harness"
)

// TestCrowdAtTheDoor sends ten thousand connections that get nowhere, some with
// wrong tokens, while a controller that was there goes on, another one comes, and
// the socket answers.
func TestCrowdAtTheDoor(t *testing.T) {
	const crowd = 10_000
	r := newReachable(t)
	v := r.newClaimed("ext4", "besieged")
	token := r.controllerToken()
	old := r.dial(token)
	if err := heal(v)(within(t), old); err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	var conns []net.Conn
	var strays sync.WaitGroup
	stop := make(chan struct{})
	defer func() {
		close(stop)
		strays.Wait()
		for _, c := range conns {
			_ = c.Close()
		}
	}()
	come := func() int {
		mu.Lock()
		defer mu.Unlock()
		return len(conns)
	}
	stray := func(then func(net.Conn)) {
		for come() < crowd {
			select {
			case <-stop:
				return
			default:
			}
			c, err := net.Dial("tcp", r.address)
			if err != nil {
				continue // the backlog is full
			}
			mu.Lock()
			conns = append(conns, c)
			mu.Unlock()
			_ = c.SetDeadline(time.Now().Add(5 * time.Second))
			then(c)
		}
	}
	for _, then := range []func(net.Conn){
		func(net.Conn) {}, // says nothing
		func(c net.Conn) { _, _ = c.Write([]byte{0x16, 3, 1, 2, 0, 1}) },                                   // begins a greeting
		func(c net.Conn) { _, _ = fmt.Fprint(c, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n") },                      // plain HTTP/2
		func(c net.Conn) { _ = tls.Client(c, trustful()).Handshake() },                                     // TLS, and nothing more
		func(net.Conn) { wrong := r.dial("not.the.token"); _ = identify(within(t), wrong); wrong.Close() }, // a wrong token
	} {
		strays.Go(func() { stray(then) })
	}
	most, served, missed := 0, 0, 0
	for come() < crowd {
		if err := heal(v)(within(t), old); err != nil {
			t.Errorf("the controller that was there: %v", err)
		}
		fresh := r.dial(token)
		if err := identify(within(t), fresh); err == nil {
			served++
		} else {
			missed++
		}
		_ = fresh.Close()
		r.Expect("healthy", v.Request())
		most = max(most, descriptors(t, r.PID()))
	}
	harness.Eventually(t, "one that comes last is let in", func() bool { return identify(within(t), r.dial(r.controllerToken())) == nil })
	t.Logf("%d descriptors at most, %d new connections served meanwhile, %d not at the first try", most, served, missed)
	if most > 600 {
		t.Errorf("the server had %d descriptors open", most)
	}
	if served == 0 {
		t.Error("no new connection was served")
	}
}

// TestFloodOfTokens makes up tokens as fast as it can. Of that little reaches the
// API, the controller that was let in before goes on, with a token that is
// renewed too, and one who comes from elsewhere is let in.
func TestFloodOfTokens(t *testing.T) {
	r := newReachable(t)
	v := r.newClaimed("ext4", "flooded")
	// Its calls bring their tokens themselves.
	open, first := r.dial(""), r.controllerToken()
	if err := heal(v)(bearing(within(t), first), open); err != nil {
		t.Fatal(err)
	}
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
	elsewhere := grpc.WithContextDialer(func(ctx context.Context, address string) (net.Conn, error) {
		from := &net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 2)}}
		return from.DialContext(ctx, "tcp", address)
	})
	for range 4 {
		if err := heal(v)(bearing(within(t), first), open); err != nil {
			t.Errorf("the controller that was there: %v", err)
		}
		if err := heal(v)(bearing(within(t), r.controllerToken()), open); err != nil {
			t.Errorf("its next token: %v", err)
		}
		if err := heal(v)(within(t), r.dial(r.controllerToken(), elsewhere)); err != nil {
			t.Errorf("a controller that comes from elsewhere: %v", err)
		}
		time.Sleep(time.Second)
	}
	close(stop)
	flood.Wait()
	seconds := time.Since(begin).Seconds()
	asked := r.tokenReviews() - before
	t.Logf("%d calls with tokens that are made up: %.0f TokenReviews in %.1f s", calls.Load(), asked, seconds)
	// 25, and 5 a second more, besides those of the controllers.
	if most := 40 + 5*seconds; asked > most {
		t.Errorf("the API was asked about %.0f tokens, want %.0f at most", asked, most)
	}
}

func bearing(ctx context.Context, token string) context.Context {
	return metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+token)
}

// tokenReviews counts those that the API has answered, whoever asked.
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
