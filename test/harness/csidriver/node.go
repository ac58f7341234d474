package csidriver

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/csi-addons/node-healer/pkg/nodehealer"
)

// node mounts volumes.
type node struct {
	csi.UnimplementedNodeServer
	driver Driver

	// mu: one of them mounts or unmounts at a time.
	mu sync.Mutex
	// staged has the paths at which this process staged a volume.
	staged map[string]bool
	// staging has the volumes that are being staged.
	staging sync.Map
	// healer is made when the mode asks for it first.
	healer func() (*nodehealer.Healer, error)
}

func newNode(d Driver) *node {
	return &node{driver: d, staged: map[string]bool{}, healer: sync.OnceValues(func() (*nodehealer.Healer, error) {
		// It may run on the node itself, as process 1 does.
		return nodehealer.New(nodehealer.Config{
			Driver: d.name(), StateDir: filepath.Join(d.Volumes, "healer"), KubeletRoot: d.Kubelet, HostMountNamespace: "/proc/1/ns/mnt",
		})
	})}
}

func (n *node) NodeGetInfo(context.Context, *csi.NodeGetInfoRequest) (*csi.NodeGetInfoResponse, error) {
	return &csi.NodeGetInfoResponse{NodeId: n.driver.NodeID}, nil
}

func (n *node) NodeGetCapabilities(context.Context, *csi.NodeGetCapabilitiesRequest) (*csi.NodeGetCapabilitiesResponse, error) {
	resp := new(csi.NodeGetCapabilitiesResponse)
	offered := []csi.NodeServiceCapability_RPC_Type{csi.NodeServiceCapability_RPC_GET_VOLUME_HEALTH}
	if !n.driver.mode().PublishOnly {
		offered = append(offered, csi.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME)
	}
	for _, t := range offered {
		resp.Capabilities = append(resp.Capabilities, &csi.NodeServiceCapability{
			Type: &csi.NodeServiceCapability_Rpc{Rpc: &csi.NodeServiceCapability_RPC{Type: t}},
		})
	}
	return resp, nil
}

func (n *node) NodeGetVolumeHealth(ctx context.Context, req *csi.NodeGetVolumeHealthRequest) (*csi.NodeGetVolumeHealthResponse, error) {
	if req.GetVolumeId() == "" {
		return nil, status.Error(codes.InvalidArgument, "volume_id: is empty")
	}
	if n.driver.mode().Healer {
		h, err := n.healer()
		if err != nil {
			return nil, err
		}
		return h.VolumeHealth(ctx, req)
	}
	h := &csi.VolumeHealth{VolumeId: req.GetVolumeId()}
	if said := n.driver.mode().Health; len(said) == 2 {
		h.HealthStatuses = append(h.HealthStatuses, &csi.VolumeHealth_VolumeHealthEntry{
			Status: csi.VolumeHealthErrorType_DEGRADED, Reason: said[0], Message: said[1],
		})
	}
	return &csi.NodeGetVolumeHealthResponse{VolumeHealth: h}, nil
}

// NodeStageVolume starts a daemon, as the mode says. A living one that is mounted there
// stays, except where the driver stacks.
func (n *node) NodeStageVolume(_ context.Context, req *csi.NodeStageVolumeRequest) (*csi.NodeStageVolumeResponse, error) {
	at, m := req.GetStagingTargetPath(), n.driver.mode()
	switch err := checkID(req.GetVolumeId()); {
	case err != nil:
		return nil, err
	case at == "":
		return nil, status.Error(codes.InvalidArgument, "staging_target_path: is empty")
	case req.GetVolumeCapability() == nil:
		return nil, status.Error(codes.InvalidArgument, "volume_capability: is missing")
	}
	if err := m.admits(req.GetSecrets()); err != nil {
		return nil, err
	}
	if err := n.driver.keep(keptStage, req); err != nil {
		return nil, failed("keep the request", err)
	}
	if n.driver.onDisk(req.GetVolumeId()) {
		n.mu.Lock()
		defer n.mu.Unlock()
		if err := n.driver.stageDisk(m, req.GetVolumeId(), at); err != nil {
			return nil, failed("stage the disk", err)
		}
		return &csi.NodeStageVolumeResponse{}, nil
	}
	if m.MountsAfter > 0 { // such a driver has no lock
		if err := n.driver.startDaemon(m, req.GetVolumeId(), at); err != nil {
			return nil, failed("start the daemon", err)
		}
		return &csi.NodeStageVolumeResponse{}, nil
	}
	if _, busy := n.staging.LoadOrStore(req.GetVolumeId(), true); busy {
		return nil, status.Error(codes.Aborted, "an operation on the volume is under way")
	}
	defer n.staging.Delete(req.GetVolumeId())
	time.Sleep(m.Takes)
	for n.driver.mode().Waits {
		time.Sleep(10 * time.Millisecond)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if err := n.stage(m, req.GetVolumeId(), at); err != nil {
		return nil, err
	}
	n.staged[at] = true
	return &csi.NodeStageVolumeResponse{}, nil
}

func (n *node) stage(m Mode, id, at string) error {
	is, err := look(at)
	if err != nil {
		return failed("stage", err)
	}
	done, err := m.Stage.over(is, at, n.staged[at])
	if err != nil || done {
		return err
	}
	if err := n.driver.startDaemon(m, id, at); err != nil {
		return failed("start the daemon", err)
	}
	if m.Stage == Repairs {
		go n.repair(m, id, at)
	}
	return nil
}

// over does what NodeStageVolume does about what is at the staging path, and reports
// whether nothing is to be mounted.
func (s Stage) over(is state, at string, staged bool) (done bool, err error) {
	switch {
	case s == Stacks:
	case s == Remembers && staged, s == DoesNothing && is != unmounted, s == NeverBare && is == unmounted && staged:
		return true, nil
	case is == alive:
		return s != NeedsBare, nil
	case s == RefusesDead && is == dead:
		return false, failed("stage", unix.ENOTCONN)
	case s == NeedsBare && is == dead:
		return false, status.Error(codes.FailedPrecondition, "the staging path is no empty directory")
	case is == dead:
		if err := unix.Unmount(at, unix.MNT_DETACH); err != nil {
			return false, failed("unmount what is dead", err)
		}
	}
	return false, nil
}

// repair replaces a mount that is dead or gone, as drivers do that watch their daemons,
// until the volume is unstaged.
func (n *node) repair(m Mode, id, at string) {
	for {
		time.Sleep(time.Millisecond)
		n.mu.Lock()
		is, err := look(at)
		if !n.staged[at] || err != nil {
			n.mu.Unlock()
			return
		}
		if is != alive {
			err = n.stage(m, id, at) // it begins another repair
		}
		n.mu.Unlock()
		if err != nil || is != alive {
			return
		}
	}
}

func (n *node) NodeUnstageVolume(_ context.Context, req *csi.NodeUnstageVolumeRequest) (*csi.NodeUnstageVolumeResponse, error) {
	if req.GetVolumeId() == "" || req.GetStagingTargetPath() == "" {
		return nil, status.Error(codes.InvalidArgument, "volume_id or staging_target_path: is empty")
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if err := unmount(req.GetStagingTargetPath()); err != nil {
		return nil, failed("unstage", err)
	}
	delete(n.staged, req.GetStagingTargetPath())
	return &csi.NodeUnstageVolumeResponse{}, nil
}

func (n *node) NodePublishVolume(_ context.Context, req *csi.NodePublishVolumeRequest) (*csi.NodePublishVolumeResponse, error) {
	at := req.GetTargetPath()
	if req.GetVolumeId() == "" || at == "" || req.GetVolumeCapability() == nil {
		return nil, status.Error(codes.InvalidArgument, "volume_id, target_path or volume_capability: is missing")
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if err := os.MkdirAll(at, 0o750); err != nil && !errors.Is(err, unix.EEXIST) { // what is dead is there, too
		return nil, failed("make the target", err)
	}
	if m := n.driver.mode(); m.PublishOnly {
		return &csi.NodePublishVolumeResponse{}, n.stage(m, req.GetVolumeId(), at)
	}
	if n.driver.onDisk(req.GetVolumeId()) {
		if err := publishDisk(req.GetStagingTargetPath(), at, req.GetReadonly()); err != nil {
			return nil, failed("publish the disk", err)
		}
		return &csi.NodePublishVolumeResponse{}, nil
	}
	is, err := look(at)
	switch {
	case err != nil:
		return nil, failed("publish", err)
	case is == alive:
		return &csi.NodePublishVolumeResponse{}, nil
	}
	if err := unix.Mount(req.GetStagingTargetPath(), at, "", unix.MS_BIND, ""); err != nil {
		return nil, failed("publish", err)
	}
	if req.GetReadonly() {
		if err := unix.Mount("", at, "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY, ""); err != nil {
			return nil, failed("publish read-only", err)
		}
	}
	return &csi.NodePublishVolumeResponse{}, nil
}

// NodeUnpublishVolume unmounts and removes the target, which has to be empty
// then: a test fails in which it is not.
func (n *node) NodeUnpublishVolume(_ context.Context, req *csi.NodeUnpublishVolumeRequest) (*csi.NodeUnpublishVolumeResponse, error) {
	if req.GetVolumeId() == "" || req.GetTargetPath() == "" {
		return nil, status.Error(codes.InvalidArgument, "volume_id or target_path: is empty")
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if err := unmount(req.GetTargetPath()); err != nil {
		return nil, failed("unpublish", err)
	}
	if err := unix.Rmdir(req.GetTargetPath()); err != nil && !errors.Is(err, unix.ENOENT) {
		return nil, failed("remove the target", err)
	}
	return &csi.NodeUnpublishVolumeResponse{}, nil
}

// What may be at a path.
type state int

const (
	unmounted state = iota
	alive
	dead
)

// look says what is at a path. Daemons of this driver answer, or are dead.
func look(at string) (state, error) {
	var of unix.Statfs_t
	err := unix.Statfs(at, &of)
	switch {
	case errors.Is(err, unix.ENOTCONN), errors.Is(err, unix.ECONNABORTED):
		return dead, nil
	case err != nil:
		return unmounted, fmt.Errorf("statfs %s: %w", at, err)
	case of.Type == unix.FUSE_SUPER_MAGIC:
		return alive, nil
	}
	return unmounted, nil
}

// unmount unmounts what is mounted at a path, if anything.
func unmount(at string) error {
	err := unix.Unmount(at, unix.UMOUNT_NOFOLLOW)
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOENT) {
		return nil
	}
	return err
}

func failed(operation string, err error) error {
	return status.Errorf(codes.Internal, "%s: %v", operation, err)
}
