// Package clustersettings has what nodes and controller both read of the ConfigMap with the
// cluster's settings (docs/policy.md), and of the annotations that limit them.
package clustersettings

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/yaml"
)

// The keys of the ConfigMap. A key that is none of Keys stops all heals and evictions: it
// may be a misspelled one that should.
const (
	Mode                   = "mode"
	Loop                   = "loop"
	SelfRepair             = "self-repairing-drivers"
	SelfRepairGrace        = "self-repair-grace"
	WriteWithoutAttachment = "write-without-attachment"
	DriverDaemonSets       = "driver-daemonsets"
	DriverNamespaces       = "driver-namespaces"
	Restage                = "restage-drivers"
	Evict                  = "evict"
)

// Keys are all of them.
var Keys = []string{Mode, Loop, SelfRepair, SelfRepairGrace, Restage, WriteWithoutAttachment, DriverDaemonSets, DriverNamespaces, Evict}

const (
	// ModeAnnotation says how far heals may go.
	ModeAnnotation = "node-healer.csi-addons.io/mode"
	// ModeHeal is its value that limits nothing, as if it were absent.
	ModeHeal = "heal"
	// EvictAnnotation on a Namespace, PersistentVolumeClaim or PersistentVolume forbids
	// evictions unless its value is "true".
	EvictAnnotation = "node-healer.csi-addons.io/evict"
	// TaintPrefix begins the keys of the controller's taints, as deploy/controller/admission.yaml
	// has it. The claim's UID follows: taints are unique by key and effect.
	TaintPrefix = "restage.node-healer.csi-addons.io/"
)

// FilesystemErrors is the one of EvictReasons that is not among the reasons by default.
const FilesystemErrors = "FilesystemErrors"

// EvictReasons are those for which pods may be evicted: what a new stage of the volume ends,
// or in the last two a new container.
var EvictReasons = []string{"ReadOnlyFilesystem", "FilesystemShutdown", "IOError", FilesystemErrors, "StaleInContainers", "ContainerUnverified"}

// The defaults of Eviction.
const (
	defaultAfter   = 2 * time.Minute
	defaultMax     = 1
	defaultPerHour = 6
)

// Eviction is the value of the key Evict: what the controller may evict pods for.
type Eviction struct {
	// Drivers are those whose volumes' pods may be evicted.
	Drivers []string `json:"drivers"`
	// Reasons are those of the conditions that allow it; absent: all but FilesystemErrors.
	Reasons []string `json:"reasons,omitempty"`
	// Automatic is false where pods are evicted only for jobs that a person made.
	Automatic *bool `json:"automatic,omitempty"`
	// After is for how long the volume has to be seen sick first.
	After *metav1.Duration `json:"after,omitempty"`
	// Max is how many claims' pods are evicted at a time in the cluster.
	Max *int `json:"max,omitempty"`
	// PerHour is how many evictions a driver may have in an hour.
	PerHour *int `json:"perHour,omitempty"`
}

// ParseEviction returns the value of the key Evict with its defaults. An empty text allows
// nothing.
func ParseEviction(text string) (Eviction, error) {
	var e Eviction
	if err := yaml.UnmarshalStrict([]byte(text), &e); err != nil {
		return Eviction{}, err
	}
	if e.Reasons == nil {
		e.Reasons = slices.DeleteFunc(slices.Clone(EvictReasons), func(reason string) bool { return reason == FilesystemErrors })
	}
	e.After = cmp.Or(e.After, &metav1.Duration{Duration: defaultAfter})
	e.Automatic = cmp.Or(e.Automatic, ptr.To(true))
	e.Max, e.PerHour = cmp.Or(e.Max, ptr.To(defaultMax)), cmp.Or(e.PerHour, ptr.To(defaultPerHour))
	for _, reason := range e.Reasons {
		if !slices.Contains(EvictReasons, reason) {
			return e, fmt.Errorf("%.40q is no reason to evict a pod for: no new one ends it", reason)
		}
	}
	switch {
	case slices.Contains(e.Drivers, ""):
		return e, errors.New("a driver without a name")
	case e.After.Duration < 0:
		return e, errors.New("after: is negative")
	case *e.Max < 1 || *e.PerHour < 1:
		return e, errors.New("max and perHour: at least 1; to evict nothing, remove the key")
	}
	return e, nil
}
