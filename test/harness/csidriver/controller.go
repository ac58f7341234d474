package csidriver

import (
	"context"
	"os"
	"path/filepath"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// controller creates and deletes volumes; one that is deleted keeps its directory, which
// ends with the test.
type controller struct {
	csi.UnimplementedControllerServer
	driver Driver
}

func (controller) ControllerGetCapabilities(context.Context, *csi.ControllerGetCapabilitiesRequest) (*csi.ControllerGetCapabilitiesResponse, error) {
	return &csi.ControllerGetCapabilitiesResponse{}, nil
}

func (c controller) CreateVolume(_ context.Context, req *csi.CreateVolumeRequest) (*csi.CreateVolumeResponse, error) {
	if err := checkID(req.GetName()); err != nil {
		return nil, err
	}
	if len(req.GetVolumeCapabilities()) == 0 {
		return nil, status.Error(codes.InvalidArgument, "volume_capabilities: is empty")
	}
	if err := os.MkdirAll(c.driver.Data(req.GetName()), 0o777); err != nil {
		return nil, failed("create", err)
	}
	return &csi.CreateVolumeResponse{Volume: &csi.Volume{VolumeId: req.GetName(), CapacityBytes: req.GetCapacityRange().GetRequiredBytes()}}, nil
}

func (controller) DeleteVolume(context.Context, *csi.DeleteVolumeRequest) (*csi.DeleteVolumeResponse, error) {
	return &csi.DeleteVolumeResponse{}, nil
}

func (c controller) ValidateVolumeCapabilities(_ context.Context, req *csi.ValidateVolumeCapabilitiesRequest) (*csi.ValidateVolumeCapabilitiesResponse, error) {
	if len(req.GetVolumeCapabilities()) == 0 {
		return nil, status.Error(codes.InvalidArgument, "volume_capabilities: is empty")
	}
	if err := checkID(req.GetVolumeId()); err != nil {
		return nil, err
	}
	if _, err := os.Stat(c.driver.Data(req.GetVolumeId())); err != nil {
		return nil, status.Error(codes.NotFound, "volume_id: no such volume")
	}
	return &csi.ValidateVolumeCapabilitiesResponse{Confirmed: &csi.ValidateVolumeCapabilitiesResponse_Confirmed{VolumeCapabilities: req.GetVolumeCapabilities()}}, nil
}

// checkID fails for what is no name of a directory.
func checkID(id string) error {
	if id == "" || id == "." || id == ".." || filepath.Base(id) != id {
		return status.Error(codes.InvalidArgument, "volume_id: is no name of a directory")
	}
	return nil
}
