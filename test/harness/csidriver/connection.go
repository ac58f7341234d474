package csidriver

import (
	"io"
	"net"
	"strings"
)

// misbehaving is a listener that serves no connection while the mode says so.
type misbehaving struct {
	net.Listener
	driver Driver
}

// Accept implements net.Listener.
func (l misbehaving) Accept() (net.Conn, error) {
	for {
		conn, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		how := l.driver.mode().Connection
		if how == "" {
			return conn, nil
		}
		go func() {
			defer conn.Close()
			how.misbehave(conn)
		}()
	}
}

// misbehave returns when the connection is to be closed.
func (c Connection) misbehave(conn net.Conn) {
	switch c {
	case Closes:
		return
	case Garbage:
		_, _ = conn.Write([]byte(strings.Repeat("garbage\n", 10000)))
		return
	case HalfCloses:
		_ = conn.(*net.UnixConn).CloseWrite()
	case HalfFrame: // SETTINGS, and the head of something long
		_, _ = conn.Write([]byte{0, 0, 0, 4, 0, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0, 0})
	case Silent:
	}
	_, _ = io.Copy(io.Discard, conn)
}
