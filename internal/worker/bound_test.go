package worker

import (
	"context"
	"net"
	"sync/atomic"
	"testing"
	"time"
)

// A deadline that passes just when the answer arrives is over with its call: it
// must not cut off the next one, which has the same connection.
func TestDeadlineEndsWithItsCall(t *testing.T) {
	conn := &slowConn{}
	p := &process{conn: conn}
	ctx, cancel := context.WithCancel(context.Background())
	stop := p.bound(ctx)
	cancel()
	stop()
	before := conn.cutOff.Load()
	time.Sleep(50 * time.Millisecond)
	if conn.cutOff.Load() != before {
		t.Error("the deadline of a call was set after the call had ended")
	}
}

// slowConn takes a moment to set a deadline, as a busy machine does.
type slowConn struct {
	net.Conn
	cutOff atomic.Int64
}

func (c *slowConn) SetDeadline(at time.Time) error {
	if !at.IsZero() {
		time.Sleep(10 * time.Millisecond)
		c.cutOff.Add(1)
	}
	return nil
}
