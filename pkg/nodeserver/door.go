package nodeserver

import (
	"net"
	"slices"
	"sync"
	"time"

	"k8s.io/klog/v2"
)

// What the door lets in at once. Together with tcpLimits this is what it can
// cost that anybody may connect: 384 descriptors, 3,000 goroutines for an
// instant, and memory (measured with as many as there is place for): 8 MiB if
// they are silent, 43 MiB if every stranger sends all that he can while the API
// does not answer about his tokens.
const (
	// maxGreeting is for connections that have not finished TLS: a goroutine
	// each.
	maxGreeting = 256
	// maxStrangers is for those that have, and have not shown a good token yet:
	// three goroutines each, besides calls.
	maxStrangers = 64
	// maxKnown is for those that have shown a good token.
	maxKnown = 64
	// maxAsking is the number of calls that strangers may have judged at a
	// time; each may send 64 KiB meanwhile.
	maxAsking = 128
	// strangerTime is how long a connection may take to its first good token.
	strangerTime = 20 * time.Second
)

// door is a listener that knows whom it let in. A connection is in one of three
// rooms, by how far it got; a room that is full makes place by closing one of
// its own. So connections that get nowhere compete with their like only, and
// all of them cost no more than a room has places.
type door struct {
	net.Listener

	// closings are the connections that were closed to make place.
	closings rationed

	mu     sync.Mutex
	closed bool
	// asking is the number of calls whose tokens are being judged.
	asking                     int
	greeting, strangers, known room
}

func newDoor(l net.Listener) *door {
	return &door{
		Listener:  l,
		greeting:  newRoom(maxGreeting),
		strangers: newRoom(maxStrangers),
		known:     newRoom(maxKnown),
	}
}

// Accept implements net.Listener.
func (d *door) Accept() (net.Conn, error) {
	c, err := d.Listener.Accept()
	if err != nil {
		return nil, err
	}
	v := &visitor{Conn: c, door: d, source: sourceOf(c)}
	d.mu.Lock()
	v.bell = time.AfterFunc(strangerTime, v.cut)
	d.mu.Unlock()
	d.lead(v, &d.greeting)
	return v, nil
}

// sourceOf gives the machine that a connection comes from.
func sourceOf(c net.Conn) string {
	address := c.RemoteAddr().String()
	if host, _, err := net.SplitHostPort(address); err == nil {
		return host
	}
	return address
}

// Close implements net.Listener. A server that stops waits for every handshake:
// those that are not known yet go now.
func (d *door) Close() error {
	d.mu.Lock()
	d.closed = true
	leaving := slices.Concat(d.greeting.visitors, d.strangers.visitors)
	d.mu.Unlock()
	for _, v := range leaving {
		v.cut()
	}
	return d.Listener.Close()
}

// lead takes a visitor into a room. Whoever has to make place is cut off.
func (d *door) lead(v *visitor, to *room) {
	d.mu.Lock()
	out := d.place(v, to)
	if out != nil {
		d.forget(out)
	}
	d.mu.Unlock()
	if out == nil {
		return
	}
	out.cut()
	if more, due := d.closings.due(); due {
		klog.Background().Info("Connection closed to make place for others", keySource, out.source, keyMore, more)
	}
}

// place does lead's work and gives the one that has to leave, if any.
func (d *door) place(v *visitor, to *room) *visitor {
	if v.gone || v.room == to {
		return nil
	}
	if v.room != nil {
		v.room.remove(v)
	}
	v.room = to
	to.add(v)
	switch {
	case to == &d.known:
		v.bell.Stop()
	case d.closed:
		return v
	}
	return to.excess()
}

// forget takes a visitor out of the door's books.
func (d *door) forget(v *visitor) {
	if v.room != nil {
		v.room.remove(v)
	}
	v.room, v.gone = nil, true
	v.bell.Stop()
}
