package host

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path"
	"strings"
	"time"

	"github.com/csi-addons/node-healer/pkg/touch"
	"github.com/csi-addons/node-healer/pkg/worker"
)

// Config says how a Node looks at its host.
type Config struct {
	Pool      *worker.Pool
	Namespace *Namespace
	// KubeletRoot is one of the namespace's roots, as configured.
	KubeletRoot string
	// ProbeTimeout bounds one look, StepTimeout one half of a step.
	ProbeTimeout time.Duration
	StepTimeout  time.Duration
	// SlowAnswer is how long a look may take before it counts as late.
	SlowAnswer time.Duration
	Sysfs      Sysfs
	Procfs     Procfs
}

// Node is the host that the volumes are on.
type Node struct {
	cfg           Config
	kubelet       Kubelet
	bootID        string
	hostNamespace string
	probes        probes
	files         volDataFiles
	uuids         uuids
	identities    identities
	holders       holderScans
	booted        time.Time
}

// NewNode checks cfg.
func NewNode(cfg Config) (*Node, error) {
	switch {
	case cfg.Pool == nil || cfg.Namespace == nil:
		return nil, errors.New("host: pool and namespace are required")
	case cfg.ProbeTimeout <= 0 || cfg.StepTimeout <= 0 || cfg.SlowAnswer <= 0:
		return nil, errors.New("host: timeouts must be positive")
	}
	root, known := cfg.Namespace.RealRoots()[cfg.KubeletRoot]
	if !known {
		return nil, fmt.Errorf("host: kubelet root %q was not resolved", cfg.KubeletRoot)
	}
	bootID, err := BootID()
	if err != nil {
		return nil, err
	}
	own := "/proc/self/ns/mnt"
	if f := cfg.Namespace.File(); f != nil {
		own = f.Name()
	}
	namespace, err := os.Readlink(own)
	if err != nil {
		// A bind-mounted namespace file is no link; its holders then only cost
		// one look more.
		namespace = ""
	}
	booted, err := BootTime()
	if err != nil {
		return nil, err
	}
	return &Node{cfg: cfg, kubelet: Kubelet{Root: root}, bootID: bootID, booted: booted, hostNamespace: namespace}, nil
}

// Kubelet gives kubelet's layout on this node.
func (n *Node) Kubelet() Kubelet { return n.kubelet }

// BootID identifies this boot.
func (n *Node) BootID() string { return n.bootID }

// BootTime is when this boot began.
func (n *Node) BootTime() time.Time { return n.booted }

// Mounts reads the host's whole mount table.
func (n *Node) Mounts() (Table, error) { return n.cfg.Namespace.Mounts() }

// Topology gives the host's mount table to find mounts in, Refresh what is true
// of those now.
func (n *Node) Topology() (Table, error) { return n.cfg.Namespace.Topology() }

// Refresh is false when the topology has to be asked again.
func (n *Node) Refresh(stack []Mount) ([]Mount, bool) { return n.cfg.Namespace.Refresh(stack) }

// Holder finds a running process of the pod that has the superblock mounted;
// nil when there is none. The caller closes it.
func (n *Node) Holder(podUID string, dev Dev) (*Holder, error) {
	return n.cfg.Procfs.Holder(podUID, dev, n.hostNamespace)
}

// Holders finds who holds superblocks and devices.
func (n *Node) Holders(ctx context.Context, asked []Holdable) (map[Holdable]Holders, error) {
	return n.holdersOf(ctx, &n.holders, asked)
}

// RealPath replaces a configured root at the front of p by its resolved path.
func (n *Node) RealPath(p string) string {
	best, target := "", ""
	for configured, resolved := range n.cfg.Namespace.RealRoots() {
		if (p == configured || strings.HasPrefix(p, strings.TrimSuffix(configured, "/")+"/")) && len(configured) > len(best) {
			best, target = configured, resolved
		}
	}
	if best == "" {
		return p
	}
	return path.Join(target, strings.TrimPrefix(p, best))
}

func ref(m Mount) touch.MountRef { return touch.MountRef{ID: m.ID, OldID: m.OldID} }
