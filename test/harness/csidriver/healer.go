package csidriver

import (
	"context"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/csi-addons/node-healer/pkg/api/healerpb"
)

// healer heals volumes of the driver, if the mode says so.
type healer struct {
	healerpb.UnimplementedHealerNodeServer
	driver Driver
}

func (h healer) NodeHealer(_ context.Context, req *healerpb.NodeHealerRequest) (*healerpb.NodeHealerResponse, error) {
	m := h.driver.mode()
	if checkID(req.GetVolumeId()) == nil { // others have no directory to keep it in
		if err := h.driver.keep(keptHeal, req); err != nil {
			return nil, failed("keep the request", err)
		}
	}
	if err := m.admits(req.GetSecrets()); err != nil {
		return nil, err
	}
	switch m.Heal {
	case HealsNot:
		return nil, status.Error(codes.Unimplemented, "it heals nothing")
	case Publishes:
		if err := unix.Mount(req.GetStagingTargetPath(), req.GetVolumePath(), "", unix.MS_BIND, ""); err != nil {
			return nil, failed("publish", err)
		}
	case OnlySays:
	}
	return &healerpb.NodeHealerResponse{Message: "healthy"}, nil
}

// admits fails without the secret that the driver needs.
func (m Mode) admits(secrets map[string]string) error {
	if m.UserKey != "" && secrets["userKey"] != m.UserKey {
		return status.Error(codes.Unauthenticated, "the key is another one: "+secrets["userKey"])
	}
	return nil
}
