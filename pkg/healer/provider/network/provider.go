// Package network knows network filesystems by what their mounts name: NFS, SMB, CephFS
// and GlusterFS.
//
// Its provider asks whether the server of a mount that failed or hangs can be reached
// (ServerUnreachable). It never asks about a mount that answers, it does nothing, and
// which errnos a server itself sends is in the table of healer.ConditionRows.
package network

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/csi-addons/node-healer/pkg/facts"
	"github.com/csi-addons/node-healer/pkg/healer"
)

const adviceUnreachable = "see whether the server runs, and the network between it and this node; what waits for it goes on when it is back"

// Provider tells whether the server of a network filesystem that failed or hangs can be
// reached. It has no steps.
type Provider struct{ tools healer.Tools }

// New returns the provider.
func New(tools healer.Tools) Provider { return Provider{tools} }

// Name implements healer.Provider.
func (Provider) Name() string { return "network" }

// evidence has, by address, how the connection failed; "" for one that was accepted. An
// address of which nothing is known is not in it.
type evidence map[string]string

// Collect implements healer.Collector. It connects to the servers of mounts that failed
// or hang, side by side, and to none else.
func (p Provider) Collect(ctx context.Context, c healer.Case) (healer.Evidence, error) {
	var asked []string
	for _, mp := range c.Shown() {
		for _, a := range suspects(c, mp) {
			if !slices.Contains(asked, a) && len(asked) < maxAddresses {
				asked = append(asked, a)
			}
		}
	}
	if len(asked) == 0 {
		return nil, nil
	}
	// Who waits in vain needs the rest of the time to give up.
	deadline, _ := ctx.Deadline()
	ctx, cancel := context.WithTimeout(ctx, time.Until(deadline)*3/4)
	defer cancel()
	var mu sync.Mutex
	found := evidence{}
	var wg sync.WaitGroup
	for _, a := range asked {
		wg.Go(func() {
			start := time.Now()
			err := p.tools.Reach(ctx, a)
			if how, known := failure(err, time.Since(start)); known {
				mu.Lock()
				defer mu.Unlock()
				found[a] = how
			}
		})
	}
	wg.Wait()
	return found, nil
}

// suspects returns the addresses of the server of a mount, if the server may be why it
// failed or hangs.
func suspects(c healer.Case, mp healer.MountPoint) []string {
	sb := c.Superblocks[mp.Dev()]
	row, _ := healer.ConditionOfProbe(sb)
	// A server that answered a read did answer, although a write got no answer.
	hangs := sb.Answer.TimedOut && !sb.Answer.Writing
	if !sb.Answer.Asked || !hangs && !slices.Contains(row.Beside, healer.ServerUnreachable) {
		return nil
	}
	return addresses(mp.Stack[0])
}

// shortest is how long an answer must be late to count: the caller's deadline may leave less.
const shortest = 100 * time.Millisecond

// failure returns how the connection to an address failed, "" if it did not. What else
// went wrong says nothing of the server: a name that is not found may have been known to
// who made the mount.
func failure(err error, waited time.Duration) (how string, known bool) {
	var errno syscall.Errno
	errors.As(err, &errno)
	_, unreachable := healer.ConditionOf(healer.OpConnect, errno, healer.Superblock{})
	switch {
	case err == nil:
		return "", true
	case errno == syscall.ECONNREFUSED:
		return "refused: the host answers, and nothing listens", true
	case unreachable:
		return fmt.Sprintf("%s (%s)", errno.Error(), facts.ErrnoName(errno)), true
	case errors.Is(err, context.DeadlineExceeded):
		return fmt.Sprintf("no answer within %s", waited.Round(shortest)), waited >= shortest
	}
	return "", false
}

// Examine implements healer.Provider.
func (p Provider) Examine(c healer.Case) (healer.Finding, error) {
	var f healer.Finding
	seen, _ := c.Evidence[p.Name()].(evidence)
	for _, mp := range c.Shown() {
		_, network := clients[mp.Stack[0].FSType]
		f.Mine = f.Mine || network
		if how := unanswered(suspects(c, mp), seen); how != "" {
			f.Conditions = append(f.Conditions, healer.Condition{
				Status: healer.Inaccessible, Reason: healer.ServerUnreachable, MountPoint: mp.Path, Superblock: mp.Dev(),
				Message: "no connection from the node's network to " + how, Advice: adviceUnreachable,
			})
		}
	}
	return f, nil
}

// maxText bounds the part of a message that names addresses, in bytes.
const maxText = 256

// unanswered names the addresses with how each failed; "" if one of them answered, or if
// it is not known of each.
func unanswered(addresses []string, seen evidence) string {
	text, more := "", 0
	for _, a := range addresses {
		how, known := seen[a]
		switch {
		case !known || how == "":
			return ""
		case text == "":
			text = fmt.Sprintf("%s (%s)", a, how)
		case len(text) < maxText:
			text += fmt.Sprintf(", %s (%s)", a, how)
		default:
			more++
		}
	}
	if more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}
