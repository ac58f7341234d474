// The CSI driver of the demo's second volume, which is that of the tests:
//
//	demo-fuse driver NAME KUBELET VOLUMES   runs its node plugin
//	demo-fuse stage NAME KUBELET ID AT      calls it as kubelet does
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"

	"github.com/csi-addons/node-healer/test/harness/csidriver"
)

// patience bounds the call.
const patience = 10 * time.Second

func main() {
	csidriver.Main() // does not return in a daemon
	err := errors.New("usage: demo-fuse driver NAME KUBELET VOLUMES, or demo-fuse stage NAME KUBELET ID AT")
	switch args := os.Args[1:]; {
	case len(args) == 4 && args[0] == "driver":
		err = csidriver.Driver{Name: args[1], Kubelet: args[2], Volumes: args[3], NodeID: "demo"}.Serve()
	case len(args) == 5 && args[0] == "stage":
		err = stage(csidriver.Driver{Name: args[1], Kubelet: args[2]}, args[3], args[4])
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func stage(d csidriver.Driver, id, at string) error {
	conn, err := d.Dial()
	if err != nil {
		return err
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	_, err = csi.NewNodeClient(conn).NodeStageVolume(ctx, &csi.NodeStageVolumeRequest{
		VolumeId: id, StagingTargetPath: at, VolumeCapability: csidriver.Capability(),
	}, grpc.WaitForReady(true))
	return err
}
