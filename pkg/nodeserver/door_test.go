package nodeserver

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// A room that is full closes one of the source that has the most there.
func TestWhoHasToLeave(t *testing.T) {
	type guest struct {
		name, source string
		calls        int
		refused      bool
	}
	for name, tc := range map[string]struct {
		guests []guest // the last one has just come
		want   string
	}{
		"there is place": {[]guest{{name: "a"}, {name: "b"}}, ""},
		"the oldest":     {[]guest{{name: "a"}, {name: "b"}, {name: "c"}, {name: "d"}}, "a"},
		"the oldest of the many": {[]guest{
			{name: "a", source: "few"}, {name: "b", source: "many"}, {name: "c", source: "many"}, {name: "d", source: "few 2"},
		}, "b"},
		"the oldest if all have as many": {[]guest{
			{name: "a", source: "1"}, {name: "b", source: "2"}, {name: "c", source: "2"}, {name: "d", source: "1"},
		}, "a"},
		"one that was refused":               {[]guest{{name: "a"}, {name: "b", refused: true}, {name: "c"}, {name: "d"}}, "b"},
		"one without a call":                 {[]guest{{name: "a", calls: 1}, {name: "b"}, {name: "c"}, {name: "d"}}, "b"},
		"not the new one while others idle":  {[]guest{{name: "a", calls: 1}, {name: "b", calls: 2}, {name: "c"}, {name: "d"}}, "c"},
		"the new one if all others are busy": {[]guest{{name: "a", calls: 1}, {name: "b", calls: 2}, {name: "c", calls: 1, refused: true}, {name: "d"}}, "d"},
		"a busy one of the many": {[]guest{
			{name: "a", source: "many", calls: 1}, {name: "b", source: "many", calls: 2}, {name: "c", source: "many", calls: 1}, {name: "d", source: "few"},
		}, "a"},
	} {
		r := newRoom(3)
		for _, g := range tc.guests {
			r.add(&visitor{Conn: named{name: g.name}, source: g.source, calls: g.calls, refused: g.refused})
		}
		got := ""
		if out := r.excess(); out != nil {
			got = out.Conn.(named).name
		}
		if got != tc.want {
			t.Errorf("%s: %q has to leave, want %q", name, got, tc.want)
		}
	}
}

type named struct {
	net.Conn
	name string
}

// pipeListener gives connections that exist in memory only.
type pipeListener struct {
	conns chan net.Conn
	once  sync.Once
}

func (l *pipeListener) Accept() (net.Conn, error) {
	c, ok := <-l.conns
	if !ok {
		return nil, net.ErrClosed
	}
	return c, nil
}

func (l *pipeListener) Close() error {
	l.once.Do(func() { close(l.conns) })
	return nil
}

func (l *pipeListener) Addr() net.Addr { return &net.TCPAddr{} }

// come brings a connection to the door.
func (l *pipeListener) come(t *testing.T, d *door) (client net.Conn, v *visitor) {
	t.Helper()
	client, server := net.Pipe()
	l.conns <- server
	c, err := d.Accept()
	if err != nil {
		t.Fatal(err)
	}
	return client, c.(*visitor)
}

// closed tells whether the other end hung up.
func closed(client net.Conn) bool {
	_ = client.SetReadDeadline(time.Now().Add(time.Millisecond))
	_, err := client.Read(make([]byte, 1))
	return errors.Is(err, io.EOF)
}

// Only a good token stops the clock.
func TestStrangersHaveToHurry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &pipeListener{conns: make(chan net.Conn, 1)}
		d := newDoor(l)
		clients := map[string]net.Conn{}
		enter := func(name string, further func(*visitor)) {
			client, v := l.come(t, d)
			clients[name] = client
			further(v)
		}
		call := func(v *visitor, err error) {
			judged, leave, ok := v.ask()
			if !ok {
				t.Fatal("nobody may ask")
			}
			judged(err)
			leave()
		}
		enter("silent", func(*visitor) {})
		enter("secured", func(v *visitor) { v.secured() })
		enter("refused", func(v *visitor) { v.secured(); call(v, io.EOF); call(v, io.EOF) })
		enter("known", func(v *visitor) { v.secured(); call(v, nil) })
		enter("known, then refused", func(v *visitor) { v.secured(); call(v, nil); call(v, io.EOF) })
		time.Sleep(strangerTime - time.Second)
		for name, c := range clients {
			if closed(c) {
				t.Errorf("%s: closed too soon", name)
			}
		}
		time.Sleep(2 * time.Second)
		for name, c := range clients {
			if got, want := closed(c), !strings.HasPrefix(name, "known"); got != want {
				t.Errorf("%s: closed %v, want %v", name, got, want)
			}
		}
		if n := len(d.greeting.visitors) + len(d.strangers.visitors); n != 0 || len(d.known.visitors) != 2 {
			t.Errorf("%d strangers and %d known are left", n, len(d.known.visitors))
		}
		_ = d.Close()
		for _, c := range clients {
			_ = c.Close()
		}
	})
}

// However far they get, those beyond a room's limit cost others of that room
// only their place.
func TestRoomsAreBounded(t *testing.T) {
	l := &pipeListener{conns: make(chan net.Conn, 1)}
	d := newDoor(l)
	var clients []net.Conn
	flood := func(n int, further func(*visitor)) {
		for range n {
			client, v := l.come(t, d)
			clients = append(clients, client)
			further(v)
		}
	}
	flood(1, func(v *visitor) {
		v.secured()
		judged, leave, _ := v.ask()
		judged(nil)
		leave()
	})
	flood(2*maxStrangers, func(v *visitor) { v.secured() })
	flood(2*maxGreeting, func(*visitor) {})
	for what, got := range map[string][2]int{
		"greeting":  {len(d.greeting.visitors), maxGreeting},
		"strangers": {len(d.strangers.visitors), maxStrangers},
		"known":     {len(d.known.visitors), 1},
	} {
		if got[0] != got[1] {
			t.Errorf("%s: %d, want %d", what, got[0], got[1])
		}
	}
	if closed(clients[0]) {
		t.Error("the known one is gone")
	}
	_ = d.Close()
	for i, c := range clients {
		if !closed(c) && i > 0 {
			t.Error("a stranger outlived the door")
			break
		}
		_ = c.Close()
	}
	// A door that is closed keeps nobody.
	if _, err := d.Accept(); err == nil {
		t.Error("a closed door let somebody in")
	}
	if len(d.greeting.visitors)+len(d.strangers.visitors) != 0 {
		t.Error("somebody is left in the books")
	}
}

func TestQuestionsAreBounded(t *testing.T) {
	l := &pipeListener{conns: make(chan net.Conn, 1)}
	d := newDoor(l)
	defer func() { _ = d.Close() }()
	_, stranger := l.come(t, d)
	_, known := l.come(t, d)
	judged, _, _ := known.ask()
	judged(nil)
	var open []func(error)
	for {
		judged, _, ok := stranger.ask()
		if !ok {
			break
		}
		open = append(open, judged)
	}
	if len(open) != maxAsking {
		t.Errorf("%d tokens are judged at a time, want %d", len(open), maxAsking)
	}
	if _, _, ok := known.ask(); !ok {
		t.Error("one that is known is turned away")
	}
	open[0](io.EOF)
	open[1](io.EOF)
	if _, _, ok := stranger.ask(); !ok {
		t.Error("a stranger is turned away though there is place")
	}
}

// countedListener counts the connections that the server has open.
type countedListener struct {
	net.Listener
	taken atomic.Int64

	mu         sync.Mutex
	open, most int
}

type countedConn struct {
	net.Conn
	leave func()
}

func (l *countedListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	l.taken.Add(1)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.open++
	l.most = max(l.most, l.open)
	return &countedConn{c, sync.OnceFunc(func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.open--
	})}, nil
}

func (c *countedConn) Close() error {
	c.leave()
	return c.Conn.Close()
}

// Ten thousand connections that get nowhere, each in its own way, from the same
// address as the controller: it is served all the same, and so is the socket,
// and there is a bound on what they take.
func TestTenThousandConnections(t *testing.T) {
	const crowd = 10_000
	tcp, err := ListenTCP(testContext(t), "tcp://127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l := &countedListener{Listener: tcp}
	r := serveRemoteOn(t, &fakeHealer{}, TLS{}, l)
	first := r.dial(t, trusting(), "Bearer "+goodToken)
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	if err := remoteCalls["NodeHealer"](ctx, first); err != nil {
		t.Fatal(err)
	}
	var strays sync.WaitGroup
	stop := make(chan struct{})
	var mu sync.Mutex
	var conns []net.Conn
	defer func() {
		close(stop)
		strays.Wait()
		for _, c := range conns {
			_ = c.Close()
		}
	}()
	// stray connects until everybody is there or the test has ended.
	stray := func(then func(net.Conn)) {
		for l.taken.Load() < crowd {
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
		func(c net.Conn) { _, _ = c.Write([]byte{0x16, 3, 1, 2, 0, 1}) },                  // begins a greeting, and goes on no more
		func(c net.Conn) { _, _ = io.WriteString(c, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n") }, // speaks plain HTTP/2
		func(c net.Conn) { _ = tls.Client(c, speakingHTTP2()).Handshake() },               // finishes TLS and says nothing
	} {
		strays.Go(func() { stray(then) })
	}
	goroutines, served, missed := 0, 0, 0
	for l.taken.Load() < crowd && ctx.Err() == nil {
		goroutines = max(goroutines, runtime.NumGoroutine())
		if err := remoteCalls["NodeHealer"](ctx, first); err != nil {
			t.Errorf("the connected client: %v", err)
		}
		fresh := r.dial(t, trusting(), "Bearer "+goodToken)
		if err := remoteCalls["NodeHealer"](ctx, fresh); err == nil {
			served++
		} else {
			missed++
		}
		_ = fresh.Close()
		if _, err := r.healer().NodeHealer(ctx, goodRequest()); err != nil {
			t.Errorf("the socket: %v", err)
		}
	}
	// With all of them there, one that comes now gets in too.
	last := r.dial(t, trusting(), "Bearer "+goodToken)
	if err := remoteCalls["NodeHealer"](ctx, last); err != nil {
		t.Errorf("a client that comes last: %v", err)
	}
	l.mu.Lock()
	most := l.most
	l.mu.Unlock()
	t.Logf("%d connections taken in, %d open at most, %d goroutines at most, %d new clients served meanwhile, %d not at the first try",
		l.taken.Load(), most, goroutines, served, missed)
	// Closing may lag behind by those that are just being led in.
	if most > maxGreeting+maxStrangers+maxKnown+16 {
		t.Errorf("%d connections were open at a time", most)
	}
	if goroutines > 2*(maxGreeting+4*maxStrangers+4*maxKnown) {
		t.Errorf("there were %d goroutines", goroutines)
	}
	if served == 0 && missed > 0 {
		t.Error("nobody new was served while they came")
	}
}

// Wrong tokens by the thousand, on as many connections as there may be.
func TestCrowdWithWrongTokens(t *testing.T) {
	r := serveRemote(t, &fakeHealer{}, TLS{})
	stop := make(chan struct{})
	var crowd sync.WaitGroup
	for range 20 {
		crowd.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				conn := r.dial(t, trusting(), "Bearer wrong")
				for range 3 {
					_ = remoteCalls["Identity"](testContext(t), conn)
				}
				_ = conn.Close()
			}
		})
	}
	for range 20 {
		conn := r.dial(t, trusting(), "Bearer "+goodToken)
		if err := remoteCalls["NodeHealer"](testContext(t), conn); err != nil {
			t.Errorf("a client with a good token: %v", err)
		}
		_ = conn.Close()
	}
	close(stop)
	crowd.Wait()
}

// A call whose token takes long to judge keeps its place while others come and
// go, and the socket does not notice.
func TestSlowJudgment(t *testing.T) {
	r := serveRemote(t, &fakeHealer{}, TLS{})
	judging, release := make(chan struct{}), make(chan struct{})
	once := sync.OnceFunc(func() { close(judging) })
	r.authorizer.during = func(_ context.Context, token string) {
		if token == goodToken {
			once()
			<-release
		}
	}
	conn := r.dial(t, trusting(), "Bearer "+goodToken)
	answered := make(chan error, 1)
	go func() { answered <- remoteCalls["NodeHealer"](testContext(t), conn) }()
	<-judging
	var conns []net.Conn
	for range 3 * maxStrangers {
		if c, err := tls.Dial("tcp", r.address, speakingHTTP2()); err == nil {
			conns = append(conns, c)
		}
	}
	if err := remoteCalls["Identity"](testContext(t), r.dial(t, trusting(), "Bearer wrong")); status.Code(err) != codes.Unauthenticated {
		t.Errorf("another caller meanwhile: %v", err)
	}
	if _, err := r.healer().NodeHealer(testContext(t), goodRequest()); err != nil {
		t.Errorf("the socket meanwhile: %v", err)
	}
	close(release)
	if err := <-answered; err != nil {
		t.Errorf("the call that took long: %v", err)
	}
	for _, c := range slices.Backward(conns) {
		_ = c.Close()
	}
}
