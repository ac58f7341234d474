package node

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/csi-addons/node-healer/internal/ops"
	"github.com/csi-addons/node-healer/internal/worker"
	"github.com/csi-addons/node-healer/pkg/facts"
)

// groupGrace is how long before its own end a worker kills the group of a program that is late. The kernel
// kills the program alone when the worker is killed: what it started, as fsck does fsck.ext4, would go on,
// and on a busy node a worker may not be scheduled for a second.
const groupGrace = 5 * time.Second

// RunProgram runs a program until it has ended. Before ctx ends its worker kills its process
// group: p.Deadline is set here.
func (n *Node) RunProgram(ctx context.Context, p facts.Program) (facts.ProgramResult, error) {
	end, _ := ctx.Deadline()
	left := time.Until(end)
	p.Deadline = end.Add(-min(left/4, groupGrace))
	a, err := worker.Call(ctx, n.cfg.Pool, ops.RunProgram, p)
	if err == nil && a.Late {
		err = fmt.Errorf("%s was killed: %w", p.Path, context.DeadlineExceeded)
	}
	return a, inTime(ctx, err)
}

// ReadFile reads at most limit bytes of a regular file beneath a directory of the host,
// without following a symbolic link in name. While a worker cannot be ended that reads
// the same file, no other one does.
func (n *Node) ReadFile(ctx context.Context, dir, name string, limit int) (text []byte, err error) {
	err = n.probes.unlessStuck(storage{root: "file " + dir + "\x00" + name}, func() error {
		text, err = worker.Call(ctx, n.cfg.Pool, ops.ReadFile, ops.ReadFileQuery{Dir: dir, Name: name, Limit: limit})
		return inTime(ctx, err)
	})
	return text, err
}

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
	if strings.Contains(name, "%") {
		return fmt.Errorf("%s is an address of one network interface, which is not asked", address)
	}
	addresses, err := net.DefaultResolver.LookupNetIP(ctx, "ip", name)
	if err != nil {
		// The error says nothing of an address, so it has neither an errno nor the end of ctx in it.
		return fmt.Errorf("look up %s: %v", name, err) //nolint:errorlint // see above
	}
	addresses = addresses[:min(len(addresses), maxReached)]
	network := ""
	if n.File() != nil {
		network = "/proc/1/ns/net"
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	failures := make([]error, len(addresses))
	var all sync.WaitGroup
	for i, a := range addresses {
		all.Go(func() {
			q := ops.ReachQuery{IP: a.Unmap().AsSlice(), Port: int(port), Namespace: network}
			_, err := worker.Call(ctx, n.cfg.Pool, ops.Reach, q)
			if failures[i] = inTime(ctx, err); err == nil {
				cancel() // the others are not needed
			}
		})
	}
	all.Wait()
	if slices.Contains(failures, nil) {
		return nil
	}
	return errors.Join(failures...)
}
