package node

import (
	"context"
	"errors"
	"fmt"

	"github.com/csi-addons/node-healer/internal/worker"
	"github.com/csi-addons/node-healer/pkg/facts"
)

// serverOf returns the storage that stands for the server of an NFS mount. Mounts whose
// source names none count as one server.
func serverOf(m facts.Mount) (server storage, is bool) {
	return storage{root: "nfs server " + facts.Server(m.FSType, m.Source)}, facts.IsNFS(m.FSType)
}

// errNoTurn says that other calls asked a server that does not answer for as long as
// one may wait.
var errNoTurn = fmt.Errorf("nothing was asked, because others ask the same server: %w", worker.ErrTimeout)

// atServer runs ask, which touches a mount. One NFS server is behind many
// superblocks: after a call without an answer, calls to it are serialized until it
// answers one. A server that answers is asked about all its superblocks side by side,
// and an export that hangs alone delays no call about another.
func (n *Node) atServer(ctx context.Context, m facts.Mount, ask func() error) (err error) {
	server, is := serverOf(m)
	if !is {
		return ask()
	}
	if last, _ := n.answered.get(server); last == wasSilent || n.probes.outstanding(server) != nil {
		wait, cancel := context.WithTimeout(ctx, n.longestProbe())
		defer cancel()
		err = n.probes.serialize(wait, server, ask)
		if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
			return errNoTurn
		}
	} else {
		err = ask()
		n.probes.markStuck(server, Inspection{}, err)
	}
	switch {
	case err == nil:
		n.answered.remove(server)
	case timedOut(ctx, err):
		n.answered.add(server, wasSilent)
	}
	return err
}
