package nodeserver

import (
	"net"
	"sync"
	"time"
)

// visitor is a connection that came through the door. Every field after source
// belongs to door.mu.
type visitor struct {
	net.Conn

	door   *door
	source string

	// bell ends a visit that has not come to a good token in time.
	bell *time.Timer
	// room is nil before the visit and after it.
	room *room
	gone bool
	// calls is the number of calls that are judged or running.
	calls int
	// refused says that the last token was no good.
	refused bool
}

// Close implements net.Conn.
func (v *visitor) Close() error {
	v.door.mu.Lock()
	if !v.gone {
		v.door.forget(v)
	}
	v.door.mu.Unlock()
	return v.Conn.Close()
}

// cut closes a connection at once. What the kernel still holds for it goes too:
// ten thousand sockets that linger would be a cost of their own.
func (v *visitor) cut() {
	if tcp, ok := v.Conn.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0)
	}
	_ = v.Close()
}

// secured says that TLS is set up.
func (v *visitor) secured() { v.door.lead(v, &v.door.strangers) }

// origin tells callers apart as far as they can be told apart. A connection that
// is known stands for itself: its next token is not judged together with those
// of strangers on the same machine.
func (v *visitor) origin() string {
	v.door.mu.Lock()
	defer v.door.mu.Unlock()
	if v.room == &v.door.known {
		return v.RemoteAddr().String()
	}
	return v.source
}

// ask begins a call, or reports false if too many tokens are being judged. The
// caller passes the judgment to judged, and calls leave when the call has ended.
func (v *visitor) ask() (judged func(error), leave func(), ok bool) {
	d := v.door
	d.mu.Lock()
	defer d.mu.Unlock()
	if v.room != &d.known && d.asking >= maxAsking {
		return nil, nil, false
	}
	d.asking++
	v.calls++
	judged = func(err error) {
		d.mu.Lock()
		d.asking--
		v.refused = err != nil
		d.mu.Unlock()
		if err == nil {
			d.lead(v, &d.known)
		}
	}
	leave = sync.OnceFunc(func() {
		d.mu.Lock()
		v.calls--
		d.mu.Unlock()
	})
	return judged, leave, true
}
