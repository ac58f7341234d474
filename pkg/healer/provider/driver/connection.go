package driver

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"sync/atomic"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/csi-addons/node-healer/internal/wire"
	"github.com/csi-addons/node-healer/pkg/facts/layout"
	"github.com/csi-addons/node-healer/pkg/healer"
)

// What a driver may send for one call, in bytes.
const (
	maxAnswer  = 64 << 10
	maxHeaders = 8 << 10
)

// connection is one connection to a socket of a driver, for a few calls.
type connection struct {
	*grpc.ClientConn
	raw    net.Conn
	driver string
	// secret is true once a call may carry secrets. A driver's libraries quote these as they
	// please (URL-encoded, JSON-escaped, base64), so nothing that it says then is shown.
	secret bool
	// pid is the process that listens, 0 if it cannot be seen.
	pid int
	// each is how long one call may take.
	each time.Duration
}

// dial connects to a socket of a driver, unless it is this server's own or to be left
// alone. pid is the process that listens.
func (p *Provider) dial(ctx context.Context, socket string, within time.Duration) (conn net.Conn, pid int, err error) {
	if p.memory.silent(socket, "") {
		return nil, 0, errors.New("it did not answer, or not as the driver, a short time ago")
	}
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	conn, err = p.tools.Dial(ctx, socket)
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		p.memory.leaveAlone(socket)
		return nil, 0, err
	case errors.Is(err, syscall.ECONNREFUSED), errors.Is(err, fs.ErrNotExist):
		return nil, 0, fmt.Errorf("%w: %w", healer.ErrDriverAway, err)
	case err != nil:
		return nil, 0, err
	}
	if pid = p.peer(conn); pid == os.Getpid() {
		_ = conn.Close()
		return nil, 0, errors.New("the socket is this server's own")
	}
	return conn, pid, nil
}

// connect connects to a socket of the volume's driver, for calls. gRPC gets the one connection and
// makes no second one: what the socket leads to may change.
func (p *Provider) connect(ctx context.Context, c healer.Case, socket string, each time.Duration) (*connection, error) {
	raw, pid, err := p.dial(ctx, socket, each)
	if err != nil {
		return nil, err
	}
	var used atomic.Bool
	client, err := grpc.NewClient("passthrough:///driver",
		grpc.WithContextDialer(func(context.Context, string) (net.Conn, error) {
			if used.Swap(true) {
				return nil, errors.New("the driver ended the connection")
			}
			return raw, nil
		}),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithAuthority("localhost"), // as for every unix socket
		grpc.WithNoProxy(),
		grpc.WithDisableRetry(),
		grpc.WithDisableServiceConfig(),
		grpc.WithDisableHealthCheck(),
		grpc.WithMaxHeaderListSize(maxHeaders),
		grpc.WithStaticStreamWindowSize(maxAnswer),
		grpc.WithStaticConnWindowSize(maxAnswer),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxAnswer)),
	)
	if err != nil {
		_ = raw.Close()
		return nil, err
	}
	return &connection{ClientConn: client, raw: raw, driver: c.Driver, pid: pid, each: each}, nil
}

// registered returns the CSI socket that a driver's registration with kubelet names;
// empty if there is none, or one outside of kubelet's directory. It is for drivers whose
// directory has another name.
func (p *Provider) registered(ctx context.Context, c healer.Case, each time.Duration) string {
	if known, kept := p.memory.cache.Get(registration{c.Driver}); kept {
		return known.(string)
	}
	socket := layout.Kubelet{Root: p.cfg.KubeletRoot}.Registration(c.Driver)
	conn, err := p.connect(ctx, c, socket, each)
	if err != nil {
		return ""
	}
	defer conn.close()
	info := new(emptypb.Empty)
	if err := conn.call(ctx, wire.GetInfo, new(emptypb.Empty), info); err != nil {
		p.memory.note(socket, "", err)
		return ""
	}
	at := wire.Endpoint(info, c.Driver, p.cfg.KubeletRoot)
	if at == "" {
		return ""
	}
	p.memory.cache.Add(registration{c.Driver}, at, registrationFor)
	return at
}

type registration struct{ driver string }

// registrationFor is how long a registration counts, in which a driver may be upgraded.
const registrationFor = time.Minute

func (c *connection) close() {
	_ = c.Close()
	_ = c.raw.Close() // a second time, unless gRPC never took it
}

// call calls one method under a deadline of its own. Its error is a *callError with a
// text that may be shown.
func (c *connection) call(ctx context.Context, method string, req, resp proto.Message) error {
	ctx, cancel := context.WithTimeout(ctx, c.each)
	defer cancel()
	err := c.Invoke(ctx, method, req, resp)
	if err == nil {
		return nil
	}
	e := newCallError(method, status.Convert(err))
	if c.secret {
		e.text = string(e.row.Class.Tier) + "; " + adviceDriver
	}
	return e
}

// named fails unless the driver is the one that the volume belongs to.
func (c *connection) named(name string) error {
	if name == c.driver {
		return nil
	}
	return fmt.Errorf("it names itself %s", healer.QuoteName(clean(name, maxName)))
}
