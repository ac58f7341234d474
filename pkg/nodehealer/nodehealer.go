// Package nodehealer is the healer in a CSI driver's own process: it checks and heals the
// volumes of that driver, and no others, as node-healer would (docs/embedding.md).
//
//	func main() {
//		nodehealer.MaybeWorker()
//		h, err := nodehealer.New(nodehealer.Config{Driver: "disk.example.com", StateDir: "/var/lib/disk-csi/healer"})
//		...
//		defer h.Close()
//		go func() { log.Print(h.ListenAndServe("unix:///csi/csi-addons.sock")) }()
//
// For all drivers of a node, run node-healer, or package app.
package nodehealer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"k8s.io/client-go/rest"

	"github.com/csi-addons/node-healer/internal/cluster"
	"github.com/csi-addons/node-healer/internal/engine"
	"github.com/csi-addons/node-healer/internal/setup"
	"github.com/csi-addons/node-healer/pkg/healer"
	"github.com/csi-addons/node-healer/pkg/healer/provider/containers"
	"github.com/csi-addons/node-healer/pkg/nodeserver"
)

// Config is what a Healer is made of. Only Driver and StateDir are required.
type Config struct {
	// Driver is the name of the CSI driver that this process is, and what Identity answers.
	Driver string
	// Version is the driver's; empty: unknown.
	Version string
	// StateDir is a directory on the node for records and the audit log, for this process
	// alone.
	StateDir string
	// Providers make what is asked beside the providers of this module.
	Providers []NewProvider
	// Gate says whether a volume may be changed; nil: the caller vouches that the volume it
	// names is wanted at that path.
	Gate *Gate
	// PolicyNamespace is where the Gate finds the policy, a ConfigMap named node-healer; empty:
	// csi-addons-node-healer. From another namespace than node-healer's, a policy by which
	// nothing is healed would be missed.
	PolicyNamespace string
	// AllowedUIDs are the users whose processes may call; nil: root.
	AllowedUIDs []uint32
	// MayCall is for Register with a gRPC server that was made without ServerOptions: it
	// returns the caller's name, or why it may not call. nil: every call is refused there.
	MayCall func(context.Context) (caller string, err error)

	// KubeletRoot is kubelet's directory; empty: /var/lib/kubelet.
	KubeletRoot string
	// HostMountNamespace is a file; empty: /proc/1/ns/mnt, for which the pod needs hostPID. A
	// driver that runs on the host itself, in no container, sets /proc/self/ns/mnt.
	HostMountNamespace string
	// ProbeTimeout bounds one probe, HealTimeout the work on one volume, of at least two probes;
	// 0: as node-healer.
	ProbeTimeout, HealTimeout time.Duration
}

// NewProvider makes a provider with the only tools that it may use.
type NewProvider = func(healer.Tools) healer.Provider

// Gate asks the Kubernetes API before each step.
type Gate struct {
	access   *rest.Config
	nodeName string
}

// Kubernetes returns the gate of a cluster. The driver's service account needs the rights
// of deploy/daemonset/rbac.yaml that read: it writes nothing.
func Kubernetes(access *rest.Config, nodeName string) *Gate { return &Gate{access, nodeName} }

// Healer checks and heals the volumes of one driver.
type Healer struct {
	parts  *setup.Parts
	server *nodeserver.Server
}

// began is set by MaybeWorker. Without it a worker of this program would be a second driver.
var began atomic.Bool

// MaybeWorker has to be the first call of main. In the processes that a Healer starts for
// what may never return, it does that work and does not return. The program's init functions
// run in those, too: they must start nothing.
func MaybeWorker() {
	began.Store(true)
	setup.MaybeWorker()
}

// New opens the state directory and the host's mount namespace. Its error says what the
// container lacks.
func New(cfg Config) (_ *Healer, err error) {
	switch {
	case !began.Load():
		return nil, errors.New("nodehealer: main has to begin with nodehealer.MaybeWorker()")
	case cfg.StateDir == "":
		return nil, errors.New("nodehealer: StateDir is required")
	case cfg.HostMountNamespace == "" && ownIsFirst():
		return nil, errors.New("nodehealer: process 1 has the mount namespace of this process, and is not the host's: the pod needs hostPID: true. Without a container, set HostMountNamespace to /proc/self/ns/mnt")
	}
	if err := nodeserver.ValidDriverName(cfg.Driver); err != nil {
		return nil, fmt.Errorf("nodehealer: %w", err)
	}
	if cfg.AllowedUIDs == nil {
		cfg.AllowedUIDs = []uint32{0}
	}
	probe, heal := cmp.Or(cfg.ProbeTimeout, setup.DefaultProbeTimeout), cmp.Or(cfg.HealTimeout, setup.DefaultHealTimeout)
	if probe < 0 || heal < 2*probe {
		return nil, fmt.Errorf("nodehealer: HealTimeout is %s, and has to be at least twice ProbeTimeout, %s", heal, probe)
	}
	ctx := context.Background()
	settings := engine.Settings{Drivers: []string{cfg.Driver}, Standalone: cfg.Gate == nil, HealTimeout: heal}
	parts, err := setup.Open(ctx, setup.Config{
		Settings: settings, Name: cfg.Driver, Version: cmp.Or(cfg.Version, "unknown"), StateDir: cfg.StateDir,
		KubeletRoot: cmp.Or(cfg.KubeletRoot, setup.DefaultKubeletRoot), HostNamespace: cmp.Or(cfg.HostMountNamespace, "/proc/1/ns/mnt"),
		ProbeTimeout: probe, SlowAnswer: probe / setup.SlowShare, HealContainers: containers.FUSE,
		AllowedUIDs: cfg.AllowedUIDs, MayCall: cfg.MayCall, Providers: cfg.Providers, OwnWorker: true,
	})
	if err != nil {
		return nil, fmt.Errorf("nodehealer: %w", err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("nodehealer: %w", err), parts.Close(ctx))
		}
	}()
	var c *cluster.Cluster
	if cfg.Gate != nil {
		if c, err = cluster.New(cluster.Config{
			Access: cfg.Gate.access, Version: cmp.Or(cfg.Version, "unknown"), Node: parts.Node, NodeName: cfg.Gate.nodeName,
			Namespace: cmp.Or(cfg.PolicyNamespace, setup.DefaultPodNamespace), ConfigMap: setup.DefaultConfigMap, Silent: true,
		}); err != nil {
			return nil, err
		}
	}
	engine, err := parts.NewEngine(ctx, c, nil)
	if err != nil {
		return nil, err
	}
	noLoop := func(context.Context) healer.LoopState { return healer.LoopState{} }
	server, err := parts.NewServer(engine, c, noLoop)
	if err != nil {
		return nil, err
	}
	return &Healer{parts: parts, server: server}, nil
}

// ownIsFirst reports whether process 1 lives in our own mount namespace. It does in a pod without
// hostPID, where it is this program or the container's init: by that namespace a Healer would
// see no mount and no process of the host's, and report too little.
func ownIsFirst() bool {
	first, err := os.Readlink("/proc/1/ns/mnt")
	own, _ := os.Readlink("/proc/self/ns/mnt")
	return err == nil && first == own // an error is told by whoever opens the namespace
}

// Close refuses new calls, lets running work end for a bounded time, and closes all that it
// uses, in that order.
func (h *Healer) Close() error { return h.parts.Close(context.Background()) }

// ListenAndServe answers the processes of Config.AllowedUIDs on a socket of its own until
// Close: "unix:///PATH". The directory has to be root's alone to write to. It keeps its mode: in
// a driver's, other containers may have to reach the driver's own socket.
func (h *Healer) ListenAndServe(endpoint string) error {
	l, err := nodeserver.ListenBeside(endpoint)
	if err != nil {
		return err
	}
	return h.server.Serve(l)
}

// ServerOptions are for a gRPC server of the driver's own, before Register. Limits and codec
// hold for all its services: requests of at most 64 KiB, answers of 256 KiB, unix sockets only.
// Only ours look at the caller.
func (h *Healer) ServerOptions() []grpc.ServerOption { return h.server.Options() }

// Register adds HealerNode, CSI-Addons' Identity unless there is one, and what healerctl asks
// to a gRPC server that does not serve yet.
func (h *Healer) Register(s *grpc.Server) { h.server.Register(s) }

// VolumeHealth answers NodeGetVolumeHealth of the driver's csi.v1.Node. It changes nothing.
func (h *Healer) VolumeHealth(ctx context.Context, req *csi.NodeGetVolumeHealthRequest) (*csi.NodeGetVolumeHealthResponse, error) {
	return h.server.VolumeHealth(ctx, req)
}
