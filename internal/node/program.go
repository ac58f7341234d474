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

// RunProgram runs a program until it has ended. Right before ctx ends its worker kills
// its process group: p.Deadline is set here.
func (n *Node) RunProgram(ctx context.Context, p facts.Program) (facts.ProgramResult, error) {
	end, _ := ctx.Deadline()
	left := time.Until(end)
	p.Deadline = end.Add(-min(left/4, time.Second))
	a, err := worker.Call(ctx, n.cfg.Pool, ops.RunProgram, p)
	if err == nil && a.Late {
		err = fmt.Errorf("%s was killed: %w", p.Path, context.DeadlineExceeded)
	}
	return a, inTime(ctx, err)
}

// inTime also names the end of ctx, for a call that no worker answered because of it.
func inTime(ctx context.Context, err error) error {
	if ctx.Err() != nil && (errors.Is(err, worker.ErrTimeout) || errors.Is(err, worker.ErrStuck)) {
		return fmt.Errorf("%w: %w", ctx.Err(), err)
	}
	return err
}
