package driver

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// node mounts volumes: kubelet's, which has checked what it asks for.
type node struct {
	csi.UnimplementedNodeServer
	id      string
	volumes string

	// mu: one call at a time.
	mu sync.Mutex
}

func (n *node) NodeGetInfo(context.Context, *csi.NodeGetInfoRequest) (*csi.NodeGetInfoResponse, error) {
	return &csi.NodeGetInfoResponse{NodeId: n.id}, nil
}

func (n *node) NodeGetCapabilities(context.Context, *csi.NodeGetCapabilitiesRequest) (*csi.NodeGetCapabilitiesResponse, error) {
	return &csi.NodeGetCapabilitiesResponse{Capabilities: []*csi.NodeServiceCapability{{
		Type: &csi.NodeServiceCapability_Rpc{Rpc: &csi.NodeServiceCapability_RPC{
			Type: csi.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME,
		}},
	}}}, nil
}

// NodeStageVolume starts a daemon, unless a living one is mounted there. What a
// dead one left is unmounted first.
func (n *node) NodeStageVolume(_ context.Context, req *csi.NodeStageVolumeRequest) (*csi.NodeStageVolumeResponse, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	at := req.GetStagingTargetPath()
	if filepath.Base(req.GetVolumeId()) != req.GetVolumeId() {
		return nil, status.Error(codes.InvalidArgument, "a volume's id names a directory")
	}
	is, err := look(at)
	switch {
	case err != nil:
		return nil, failed("stage", err)
	case is == alive:
		return &csi.NodeStageVolumeResponse{}, nil
	case is == dead:
		if err := unix.Unmount(at, unix.MNT_DETACH); err != nil {
			return nil, failed("take the dead mount off", err)
		}
	}
	if err := startDaemon(n.volumes, req.GetVolumeId(), at); err != nil {
		return nil, failed("start the daemon", err)
	}
	return &csi.NodeStageVolumeResponse{}, nil
}

func (n *node) NodeUnstageVolume(_ context.Context, req *csi.NodeUnstageVolumeRequest) (*csi.NodeUnstageVolumeResponse, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if err := unmount(req.GetStagingTargetPath()); err != nil {
		return nil, failed("unstage", err)
	}
	return &csi.NodeUnstageVolumeResponse{}, nil
}

func (n *node) NodePublishVolume(_ context.Context, req *csi.NodePublishVolumeRequest) (*csi.NodePublishVolumeResponse, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	at := req.GetTargetPath()
	if err := os.MkdirAll(at, 0o750); err != nil {
		return nil, failed("make the target", err)
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
	case errors.Is(err, unix.ENOTCONN):
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
