package integration

import (
	"crypto/tls"
	"fmt"
	"net"
	"os"
	"sync"
	"testing"
	"time"

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

func descriptors(t *testing.T, pid int) int {
	t.Helper()
	open, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	harness.Must(t, err)
	return len(open)
}
