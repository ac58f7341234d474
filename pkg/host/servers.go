package host

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"

	"github.com/csi-addons/node-healer/pkg/worker"
)

// servers knows which NFS servers gave no answer the last time. One server is behind
// many superblocks: as long as it is silent, one worker at a time asks it, whatever
// for. One that answers is asked for all its superblocks side by side, and an export
// that hangs alone keeps nobody from an answer of another.
type servers struct {
	mu     sync.Mutex
	silent map[storage]bool
}

func (s *servers) isSilent(server storage) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.silent[server]
}

func (s *servers) note(server storage, silent bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !silent {
		delete(s.silent, server)
		return
	}
	if s.silent == nil {
		s.silent = map[storage]bool{}
	}
	s.silent[server] = true
}

// serverOf gives what stands for the server of an NFS mount (nfs(5): HOST:/PATH).
func serverOf(m Mount) (server storage, is bool) {
	host, _, _ := strings.Cut(m.Source, ":/")
	return storage{root: "nfs server " + host}, IsNFS(m.FSType)
}

// errNoTurn says that others asked a silent server for as long as one may wait.
var errNoTurn = fmt.Errorf("nothing was asked, because others ask the same server: %w", worker.ErrSilent)

// atServer has ask run, which touches a mount; at a silent server while nobody else
// does.
func (n *Node) atServer(ctx context.Context, m Mount, ask func() error) (err error) {
	server, is := serverOf(m)
	if !is {
		return ask()
	}
	if n.servers.isSilent(server) || n.probes.outstanding(server) != nil {
		turn, cancel := context.WithTimeout(ctx, 4*n.cfg.ProbeTimeout)
		defer cancel()
		err = n.probes.serialize(turn, server, ask)
		if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
			return errNoTurn
		}
	} else {
		err = ask()
		n.probes.markStuck(server, Inspection{}, err)
	}
	if err == nil || timedOut(ctx, err) {
		n.servers.note(server, err != nil)
	}
	return err
}
