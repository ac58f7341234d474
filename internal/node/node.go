// Package node describes the node without touching a volume: the mount table,
// what sysfs knows of devices and filesystems, kubelet's files, and what holds a
// superblock. Workers do everything that touches a volume (internal/ops): one at a
// time at each storage.
//
// Node returns facts. Whether a fact is a fault is decided by the providers, and the
// texts of messages are made there and in pkg/healer.
package node

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/utils/lru"

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
	// files has what kubelet's files said last, by path.
	files cache[string, *facts.VolData]
	// rdevs are the device numbers that no mount table shows: of device nodes and of btrfs.
	rdevs cache[rdevKey, facts.Dev]
	walks walks
}

// New checks cfg.
func New(cfg Config) (*Node, error) {
	switch {
	case cfg.Pool == nil || cfg.Namespace == nil:
		return nil, errors.New("node: pool and namespace are required")
	case cfg.ProbeTimeout <= 0 || cfg.StepTimeout <= 0 || cfg.SlowAnswer <= 0:
		return nil, errors.New("node: timeouts must be positive")
	}
	root, known := cfg.Namespace.RealRoots()[cfg.KubeletRoot]
	if !known {
		return nil, fmt.Errorf("node: kubelet root %q was not resolved", cfg.KubeletRoot)
	}
	bootID, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return nil, fmt.Errorf("boot id: %w", err)
	}
	n := &Node{
		Namespace: cfg.Namespace, Sysfs: cfg.Sysfs, cfg: cfg, kubelet: layout.Kubelet{Root: root},
		bootID: strings.TrimSpace(string(bootID)),
		probes: newProbes(), answered: newCache[storage, manner](), files: newCache[string, *facts.VolData](), rdevs: newCache[rdevKey, facts.Dev](),
		walks: newWalks(),
	}
	n.walks.walk = n.walk
	return n, nil
}

// Kubelet returns kubelet's layout on this node.
func (n *Node) Kubelet() layout.Kubelet { return n.kubelet }

// BootID identifies this boot: device numbers and mount ids mean nothing in
// another one.
func (n *Node) BootID() string { return n.bootID }

// BootTime is when this boot began, by the wall clock as it is now: a node without a battery sets that clock
// when it has begun to serve.
func (n *Node) BootTime() time.Time { return time.Now().Add(-SinceBoot()) }

// SinceBoot returns the time since this boot began, as the start times of processes
// are counted: that clock cannot be set.
func SinceBoot() time.Duration {
	var up unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_BOOTTIME, &up) // fails for an unknown clock only
	return time.Duration(up.Nano())
}

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
