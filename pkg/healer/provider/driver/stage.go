package driver

import (
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"

	"github.com/csi-addons/node-healer/pkg/api"
	"github.com/csi-addons/node-healer/pkg/facts"
	"github.com/csi-addons/node-healer/pkg/healer"
)

// staging is one step restage.
type staging struct {
	*Provider
	c        healer.Case
	staged   healer.MountPoint
	evidence Evidence
	// wait says why the driver must not be called now; empty if it may, as far as the check or
	// prepare could tell.
	wait string

	conn       *connection
	with       healer.StageRequest
	request    *csi.NodeStageVolumeRequest
	revalidate func(context.Context) error
	// bare is true once the step took the dead mounts off, or found none.
	bare bool
}

// run has the driver stage the volume at the staging path, from which the dead mounts go
// before or, if the driver refuses them, then. Where the driver must not be called now, nothing is
// left bare only.
func (s staging) run(ctx context.Context, revalidate func(context.Context) error) (err error) {
	ctx, cancel := context.WithTimeout(ctx, s.cfg.DriverTimeout)
	defer cancel()
	s.revalidate, s.bare = revalidate, !s.staged.Mounted()
	if s.wait == "" {
		err = s.prepare(ctx)
	}
	if s.wait != "" {
		err = served(s.wait)
		pause(ctx, bareGrace)
	}
	if s.conn != nil {
		defer s.conn.close()
	}
	if err == nil {
		err = s.call(ctx)
	}
	// Also where nothing was done: an interrupted step may have left the path bare.
	return s.finish(ctx, err)
}

// bareGrace is how long a driver that is at work may leave the staging path bare, after it took
// off the stand-in, before it mounts: its daemon would meet another one there, and give up.
const bareGrace = time.Second

func pause(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}

// prepare finds out all that may refuse, and connects to the driver, which has to name itself and
// to stage volumes.
func (s *staging) prepare(ctx context.Context) error {
	if s.staged.Layout.Base != s.staged.Path { // what lies beside is not known
		return fmt.Errorf("%w: the driver stages in %q below the staging path, and only what is staged at the path itself is staged anew", healer.ErrRefused, path.Base(s.staged.Path))
	}
	with, err := s.cfg.Stager.Request(ctx, s.c, s.staged)
	if v := with.Inputs.Version; v != "" {
		s.memory.told.Add(keyOf(s.c), v)
	}
	if err != nil {
		return fmt.Errorf("%w: %w", healer.ErrRefused, err)
	}
	for _, m := range s.staged.Stack {
		if err := s.daemonGone(ctx, m.Dev); err != nil {
			return err
		}
	}
	s.memory.cache.Remove(silent{socket: s.evidence.StagesAt}) // it may have been started anew since
	if s.conn, err = s.connect(ctx, s.c, s.evidence.StagesAt, s.cfg.StepTimeout/parts); err != nil {
		return err
	}
	if s.c.Restaging() && s.conn.pid != s.evidence.StagePID { // the check looked in no pod, or in another one
		if s.wait = s.mounting(ctx, s.c, s.staged, s.conn.pid); s.wait != "" {
			return nil
		}
	}
	offered, err := s.conn.introduce(ctx) // each time: it is told secrets
	if err != nil {
		return err
	}
	mode, err := stagingMode(with, offered)
	if err != nil {
		return err
	}
	// Mount flags may be sensitive, too (CSI, VolumeCapability).
	s.conn.each, s.conn.secret = s.cfg.DriverTimeout, len(with.Secrets)+len(with.MountFlags) > 0
	s.with = with
	s.request = &csi.NodeStageVolumeRequest{
		VolumeId: s.c.Volume.ID, StagingTargetPath: s.forDriver(s.staged.Path), VolumeCapability: capability(with, mode, with.MountFlags),
		PublishContext: with.PublishContext, VolumeContext: with.VolumeContext, Secrets: with.Secrets,
	}
	return nil
}

// stagingMode returns the access mode as kubelet does (pkg/volume/csi/csi_client.go). It
// fails where kubelet would not call the driver, or call it with what is not known here.
func stagingMode(with healer.StageRequest, offered []csi.NodeServiceCapability_RPC_Type) (mode csi.VolumeCapability_AccessMode_Mode, err error) {
	offers := func(t csi.NodeServiceCapability_RPC_Type) bool { return slices.Contains(offered, t) }
	switch {
	case !offers(csi.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME):
		return mode, fmt.Errorf("%w: the driver does not offer STAGE_UNSTAGE_VOLUME", healer.ErrRefused)
	case with.FSGroup && offers(csi.NodeServiceCapability_RPC_VOLUME_MOUNT_GROUP):
		return mode, fmt.Errorf("%w: the driver applies the fsGroup of a pod (VOLUME_MOUNT_GROUP), and only kubelet knows which", healer.ErrRefused)
	}
	return accessMode(with, offers(csi.NodeServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER))
}

// On a busy node some process can mostly not be examined in time; another look sees it.
const (
	daemonLooks = 10
	daemonPause = 100 * time.Millisecond
)

// daemonGone fails unless no process has the connection of a dead mount open, at two looks in a
// row: it could begin to serve, or hand it to another one, which one look misses if it reads that
// one before and the first one after.
func (p *Provider) daemonGone(ctx context.Context, dev facts.Dev) error {
	clean := 0
	for look := 1; ; look++ {
		d, err := p.cfg.Host.FUSEDaemons(ctx, dev)
		switch {
		case err != nil:
			return err
		case len(d.Processes) > 0:
			return served(fmt.Sprintf("process %d still has the FUSE connection open", d.Processes[0].PID))
		case !d.Untold && !d.Cut && d.Unseen == 0:
			if clean++; clean > 1 {
				return nil
			}
			continue
		case d.Untold || look >= daemonLooks:
			return served("it cannot be told whether a process still has the FUSE connection open")
		}
		clean = 0
		if pause(ctx, daemonPause); ctx.Err() != nil {
			return ctx.Err()
		}
	}
}

// served is the error of what a process may serve, or be about to. It may be ending, or one
// that could not be examined in time.
func served(why string) error {
	return classed{fmt.Errorf("%w: %s", healer.ErrRefused, why), api.Class{Tier: api.Transient, Type: api.TypeExecution}}
}

// call calls the driver, over the dead mounts or without them.
func (s *staging) call(ctx context.Context) error {
	if s.evidence.Order == healer.UnmountFirst {
		if err := s.unmountDead(ctx); err != nil {
			return err
		}
	}
	err := s.stage(ctx)
	e := (*callError)(nil)
	if s.bare || !errors.As(err, &e) || e.pending() || e.code != codes.Internal && e.code != codes.FailedPrecondition {
		return err
	}
	// Its daemon may have been started all the same.
	if wait := s.mounting(ctx, s.c, s.staged, s.conn.pid); wait != "" {
		return fmt.Errorf("%w; it is not called without the dead mount: %s", err, wait)
	}
	again := s.unmountDead(ctx)
	if again == nil {
		again = s.stage(ctx)
	}
	if answer := (*healer.DriverError)(nil); again != nil && !errors.As(again, &answer) {
		return together(err, again)
	}
	return again
}

func (s *staging) unmountDead(ctx context.Context) error {
	if s.bare {
		return nil
	}
	err := s.cfg.Host.UnmountDead(ctx, s.staged.Path, s.staged.Stack, s.revalidate)
	s.bare = !errors.Is(err, healer.ErrRefused) // a part of it may have been done
	return err
}

// stage calls the driver, and returns what its error is for the engine.
func (s *staging) stage(ctx context.Context) error {
	if err := s.wanted(ctx); err != nil {
		return err
	}
	if err := healer.RecordCall(ctx, s.conn.pid, s.conn.each); err != nil {
		return err
	}
	err := s.conn.call(ctx, csi.Node_NodeStageVolume_FullMethodName, s.request, new(csi.NodeStageVolumeResponse))
	return s.driverError(s.c, healer.Restage, s.conn.pid, s.with, err)
}

// wanted asks the gate once more. While the path is bare an API that is slow counts as one that does not
// answer: a pod or the driver could write to the directory beneath for as long as it takes.
func (s *staging) wanted(ctx context.Context) error {
	if s.bare {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, wantedTimeout)
		defer cancel()
	}
	return s.revalidate(ctx)
}

// finishTimeout is how long it may take to find out what is at the staging path in the end,
// wantedTimeout how long the gate may take while the path is bare: the worker that mounts needs the rest.
const (
	finishTimeout = 10 * time.Second
	wantedTimeout = finishTimeout / 2
)

// finish leaves no bare staging path behind that a pod still wants: kubelet and the driver
// would publish the directory beneath. Nothing that the driver answers is believed but an
// error.
func (s *staging) finish(ctx context.Context, err error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), finishTimeout)
	defer cancel()
	s.bare = true // the driver may have taken the dead mount off, too
	unwanted := s.wanted(ctx)
	// An API that does not answer or may be late, a mode that was changed meanwhile and a drain say
	// nothing of whether a pod wants the volume. The path was not bare before: it gets back what is dead, which
	// kubelet unstages as well, and no pod the directory beneath.
	silent := unwanted != nil && !slices.Contains([]healer.Rule{healer.RuleWanted, healer.RuleOther}, healer.RuleOf(unwanted))
	before, mounted := s.staged.Top()
	if !mounted {
		before = facts.Mount{FSType: s.c.Record.FSType, Source: s.c.Record.Source}
	}
	placed, changed, bare := s.cfg.Host.MountDead(ctx, s.staged.Path, before, unwanted == nil || silent)
	if bare != nil {
		bare = fmt.Errorf("the staging path may be bare: %w", bare)
	}
	answered := err == nil
	switch {
	case answered && unwanted != nil:
		unwanted = s.driverError(s.c, healer.Restage, s.conn.pid, s.with, unwanted)
	case answered && (placed || !changed):
		err = s.driverError(s.c, healer.Restage, s.conn.pid, s.with, errNoEffect)
	}
	if unwanted != nil && changed && !silent {
		return fmt.Errorf("%w: %w", healer.ErrNotWanted, unwanted)
	}
	return together(err, unwanted, bare)
}

// together returns errors as one, on one line; errors.Join would put each on its own, and a
// message is one line. It is nil for none.
func together(errs ...error) (all error) {
	for _, err := range errs {
		switch {
		case err == nil:
		case all == nil:
			all = err
		default:
			all = fmt.Errorf("%w; %w", all, err)
		}
	}
	return all
}

var errNoEffect = classed{
	errors.New("RestageHadNoEffect: the driver answered OK to NodeStageVolume, and nothing new is mounted at the staging path"),
	api.Class{Tier: api.Retriable, Type: api.TypeExecution},
}
