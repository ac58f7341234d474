package host

import (
	"context"
	"errors"
	"fmt"
	"strings"
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

// RunProgram runs a program until it and all that it started have ended. When ctx ends
// they are killed first. While one cannot be killed, the same program with the same
// arguments is not run again.
func (n *Node) RunProgram(ctx context.Context, p Program) (r ProgramResult, err error) {
	s := storage{root: "program " + p.Path + "\x00" + strings.Join(p.Args, "\x00")}
	err = n.probes.unlessStuck(s, func() error {
		a, err := worker.Call(ctx, n.cfg.Pool, workerops.RunProgram, workerops.ProgramQuery{
			Path: p.Path, Args: p.Args, Env: p.Env, OnHost: p.OnHost, Stdin: p.Stdin, Limit: p.Limit,
		})
		r = ProgramResult(a)
		return inTime(ctx, err)
	})
	return r, err
}

// inTime also names the end of ctx, for a call that no worker answered because of it.
func inTime(ctx context.Context, err error) error {
	if ctx.Err() != nil && (errors.Is(err, worker.ErrTimeout) || errors.Is(err, worker.ErrStuck)) {
		return fmt.Errorf("%w: %w", ctx.Err(), err)
	}
	return err
}
