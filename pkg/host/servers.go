package host

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"

	"github.com/csi-addons/node-healer/pkg/worker"
)

// servers knows which NFS servers did not answer the last time. One server is behind
// many superblocks: as long as it hangs, one worker at a time asks it. One that answers
// is asked for all its superblocks side by side, and one export that hangs does not
// block the others.
type servers struct {
	mu   sync.Mutex
	hung map[storage]bool
}

func (s *servers) isHung(server storage) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.hung[server]
}

func (s *servers) note(server storage, hung bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !hung {
		delete(s.hung, server)
		return
	}
	if s.hung == nil {
		s.hung = map[storage]bool{}
	}
	s.hung[server] = true
}

// serverOf returns the key for the server of an NFS mount (nfs(5): HOST:/PATH).
func serverOf(m Mount) (server storage, is bool) {
	host, _, _ := strings.Cut(m.Source, ":/")
	return storage{root: "nfs server " + host}, IsNFS(m.FSType)
}

// errNoTurn says that other calls asked a hung server for as long as this one may wait.
var errNoTurn = fmt.Errorf("nothing was asked, because others ask the same server: %w", worker.ErrTimeout)

// atServer runs ask, which touches a mount; at a hung server one call at a time.
func (n *Node) atServer(ctx context.Context, m Mount, ask func() error) (err error) {
	server, is := serverOf(m)
	if !is {
		return ask()
	}
	if n.servers.isHung(server) || n.probes.left(server) != nil {
		turn, cancel := context.WithTimeout(ctx, 4*n.cfg.ProbeTimeout)
		defer cancel()
		err = n.probes.alone(turn, server, ask)
		if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
			return errNoTurn
		}
	} else {
		err = ask()
		n.probes.leave(server, Inspection{}, err)
	}
	if err == nil || silent(ctx, err) {
		n.servers.note(server, err != nil)
	}
	return err
}
