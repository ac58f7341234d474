// Package node describes the node without touching a volume: the mount table,
// what sysfs knows of devices and filesystems, kubelet's files, and what holds a
// superblock. Workers do everything that touches a volume (internal/ops): one at a
// time at each storage.
//
// Node returns facts. Whether a fact is a fault is decided by the providers, and the
// texts of messages are made there and in pkg/healer.
package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/singleflight"
	"golang.org/x/sys/unix"
	"golang.org/x/time/rate"
	"k8s.io/utils/lru"

	"github.com/csi-addons/node-healer/internal/ops"
	"github.com/csi-addons/node-healer/internal/worker"
	"github.com/csi-addons/node-healer/pkg/facts"
	"github.com/csi-addons/node-healer/pkg/facts/layout"
)

// Config says how a Node reads its host.
type Config struct {
	Pool      *worker.Pool
	Namespace *Namespace
	// KubeletRoot is one of the namespace's roots, as configured.
	KubeletRoot string
	// ProbeTimeout bounds one probe, StepTimeout one half of a step.
	ProbeTimeout time.Duration
	StepTimeout  time.Duration
	// SlowAnswer is how long a probe may take before it counts as late.
	SlowAnswer time.Duration
	Sysfs      Sysfs
}

// Node is the host that the volumes are on.
type Node struct {
	// Namespace is the host's mount namespace.
	*Namespace
	Sysfs
	cfg     Config
	kubelet layout.Kubelet
	bootID  string
	probes  *probes
	batch   batching
	// answered is how a storage answered the last time: with NFS servers, of which only those are in
	// it that did not.
	answered cache[storage, manner]
	// files are kubelet's, by path, for as long as they do not change.
	files cache[string, volDataFile]
	// rdevs are the device numbers that no mount table shows: of device nodes and of btrfs.
	rdevs cache[storage, facts.Dev]
	// walk is walkInWorker, but in tests. walks are those over all processes, by kind; walkShares
	// limit the milliseconds that each kind takes. Only a daemonWalk uses knownDaemons. peersOf counts the calls that wait for the
	// peers of a FUSE connection's daemons, which a daemonWalk tells of no other one.
	walk         func(context.Context, storage) (ops.ProcessesAnswer, error)
	walks        singleflight.Group
	walkShares   map[storage]*rate.Limiter
	knownDaemons []facts.FUSEDaemon
	peersMu      sync.Mutex
	peersOf      map[uint64]int
	booted       time.Time
	moved        []movedRoot
}

// New checks cfg.
func New(cfg Config) (*Node, error) {
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
	n := &Node{
		Namespace: cfg.Namespace, Sysfs: cfg.Sysfs, cfg: cfg, kubelet: layout.Kubelet{Root: root}, bootID: bootID, booted: BootTime(),
		moved:      movedRoots(cfg.Namespace.RealRoots()),
		walkShares: map[storage]*rate.Limiter{containerWalk: rate.NewLimiter(walkShare, walkBurst), daemonWalk: rate.NewLimiter(walkShare, walkBurst)},
		probes:     newProbes(), answered: newCache[storage, manner](), files: newCache[string, volDataFile](), rdevs: newCache[storage, facts.Dev](),
		peersOf: map[uint64]int{},
	}
	n.walk = n.walkInWorker
	return n, nil
}

// Kubelet returns kubelet's layout on this node.
func (n *Node) Kubelet() layout.Kubelet { return n.kubelet }

// BootID identifies this boot.
func (n *Node) BootID() string { return n.bootID }

// BootTime is when this boot began.
func (n *Node) BootTime() time.Time { return n.booted }

// RealPath replaces a configured root at the front of p by its resolved path.
func (n *Node) RealPath(p string) string {
	for _, r := range n.moved {
		if rest, beneath := strings.CutPrefix(p, r.configured); beneath && (rest == "" || rest[0] == '/') {
			return path.Join(r.resolved, rest)
		}
	}
	return p
}

// movedRoot is a configured root with a symbolic link in it.
type movedRoot struct{ configured, resolved string }

// movedRoots returns those whose resolved path is another one, the longest first.
func movedRoots(roots map[string]string) []movedRoot {
	var moved []movedRoot
	for configured, resolved := range roots {
		if configured != resolved {
			moved = append(moved, movedRoot{configured, resolved})
		}
	}
	slices.SortFunc(moved, func(a, b movedRoot) int { return cmp.Compare(len(b.configured), len(a.configured)) })
	return moved
}

// BootID identifies this boot: device numbers and mount ids mean nothing in
// another one.
func BootID() (string, error) {
	raw, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "", fmt.Errorf("boot id: %w", err)
	}
	return strings.TrimSpace(string(raw)), nil
}

// SinceBoot returns the time since this boot began, as the start times of processes
// are counted: that clock cannot be set.
func SinceBoot() time.Duration {
	var up unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_BOOTTIME, &up) // fails for an unknown clock only
	return time.Duration(up.Nano())
}

// BootTime returns when this boot began, by the present wall clock.
func BootTime() time.Time { return time.Now().Add(-SinceBoot()) }

// cacheSize is many times the volumes of a node.
const cacheSize = 4096

// cache is a typed lru.Cache: what is forgotten is learned again.
type cache[K comparable, V any] struct{ lru *lru.Cache }

func newCache[K comparable, V any]() cache[K, V] { return cache[K, V]{lru.New(cacheSize)} }

// get returns the zero value for an unknown key.
func (c cache[K, V]) get(key K) (V, bool) {
	got, _ := c.lru.Get(key)
	v, known := got.(V)
	return v, known
}

func (c cache[K, V]) add(key K, v V) { c.lru.Add(key, v) }
func (c cache[K, V]) remove(key K)   { c.lru.Remove(key) }
