package node

import (
	"context"
	"errors"
	"fmt"
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

// inTime also names the end of ctx, for a call that no worker answered because of it.
func inTime(ctx context.Context, err error) error {
	if why := over(ctx); why != nil && (errors.Is(err, worker.ErrTimeout) || errors.Is(err, worker.ErrStuck)) {
		return fmt.Errorf("%w: %w", why, err)
	}
	return err
}
