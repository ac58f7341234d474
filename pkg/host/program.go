package host

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/csi-addons/node-healer/pkg/worker"
	"github.com/csi-addons/node-healer/pkg/workerops"
)

// Program is one run of a program, without a shell.
type Program struct {
	Path string
	// Args and Env can be read by everyone on the node.
	Args, Env []string
	// OnHost runs the host's program, in the host's mount namespace; else it is one of
	// the server's own image.
	OnHost bool
	Stdin  []byte
	// Limit is how many bytes of both outputs together are kept.
	Limit int
}

// ProgramResult is what a program left.
type ProgramResult struct {
	// Code is its exit code, -1 if a signal ended it.
	Code   int
	Output []byte
	// Cut is true if it wrote more than that.
	Cut     bool
	Elapsed time.Duration
}

// RunProgram runs a program until it has ended. Right before ctx ends its worker kills
// its process group.
func (n *Node) RunProgram(ctx context.Context, p Program) (ProgramResult, error) {
	end, _ := ctx.Deadline()
	left := time.Until(end)
	a, err := worker.Call(ctx, n.cfg.Pool, workerops.RunProgram, workerops.ProgramQuery{
		Path: p.Path, Args: p.Args, Env: p.Env, OnHost: p.OnHost, Stdin: p.Stdin, Limit: p.Limit,
		Deadline: end.Add(-min(left/4, time.Second)),
	})
	if err == nil && a.Late {
		err = fmt.Errorf("%s was killed: %w", p.Path, context.DeadlineExceeded)
	}
	return ProgramResult{Code: a.Code, Output: a.Output, Cut: a.Cut, Elapsed: a.Elapsed}, inTime(ctx, err)
}

// inTime also names the end of ctx, for a call that no worker answered because of it.
func inTime(ctx context.Context, err error) error {
	if ctx.Err() != nil && (errors.Is(err, worker.ErrTimeout) || errors.Is(err, worker.ErrStuck)) {
		return fmt.Errorf("%w: %w", ctx.Err(), err)
	}
	return err
}
