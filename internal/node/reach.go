package node

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"sync"

	"github.com/csi-addons/node-healer/internal/ops"
	"github.com/csi-addons/node-healer/internal/worker"
)

// maxReached is how many addresses of one name are asked.
const maxReached = 4

// Reach connects to a TCP address (host:port) from the network of PID 1, and hangs up.
// A server without a mount namespace of the host uses its own network. A name is looked
// up from the server's network, and one of its addresses has to accept.
func (n *Node) Reach(ctx context.Context, address string) error {
	name, service, err := net.SplitHostPort(address)
	if err != nil {
		return err
	}
	port, err := strconv.ParseUint(service, 10, 16)
	if err != nil {
		return fmt.Errorf("the port of %s is no number", address)
	}
	addresses, err := lookUp(ctx, name)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	failures := make([]error, len(addresses))
	var all sync.WaitGroup
	for i, a := range addresses {
		all.Go(func() {
			if failures[i] = n.reach(ctx, netip.AddrPortFrom(a, uint16(port))); failures[i] == nil {
				cancel() // the others are not needed
			}
		})
	}
	all.Wait()
	for _, err := range failures {
		if err == nil {
			return nil
		}
	}
	return errors.Join(failures...)
}

func (n *Node) reach(ctx context.Context, a netip.AddrPort) error {
	if a.Addr().Zone() != "" {
		return fmt.Errorf("%s is an address of one network interface, which is not asked", a)
	}
	q := ops.ReachQuery{IP: a.Addr().AsSlice(), Port: int(a.Port())}
	if n.File() != nil {
		q.Namespace = "/proc/1/ns/net"
	}
	_, err := worker.Call(ctx, n.cfg.Pool, ops.Reach, q)
	return inTime(ctx, err)
}

// lookUp returns the addresses of a name. Its error says nothing of them, so it has
// neither an errno nor the end of ctx in it.
func lookUp(ctx context.Context, name string) ([]netip.Addr, error) {
	if a, err := netip.ParseAddr(name); err == nil {
		return []netip.Addr{a.Unmap()}, nil
	}
	found, err := net.DefaultResolver.LookupNetIP(ctx, "ip", name)
	if err != nil {
		return nil, fmt.Errorf("look up %s: %v", name, err) //nolint:errorlint // see above
	}
	found = found[:min(len(found), maxReached)]
	for i := range found {
		found[i] = found[i].Unmap()
	}
	return found, nil
}
