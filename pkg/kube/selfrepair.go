package kube

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"

	"github.com/csi-addons/node-healer/pkg/healer"
)

// SelfRepair says, by CSI driver, which conditions are left to the driver: it
// repairs them by itself, and two that mend one mount get into each other's way.
type SelfRepair map[string][]healer.Reason

// DefaultSelfRepair lists the drivers that repair volumes in use without being
// told to, as their maintainers document it or their code shows. Those that do
// so only when they stage or publish anew, or only behind an option that is off,
// are not on it (docs/policy.md names some).
func DefaultSelfRepair() SelfRepair {
	return SelfRepair{
		// seaweedfs/seaweedfs-csi-driver, pull requests 212 and 255 and
		// pkg/driver/health_monitor.go: every 30 s it stages dead mounts anew,
		// binds lost publish paths again, and enters the containers. A mount
		// that hangs it leaves alone.
		"seaweedfs-csi-driver": {
			healer.NotMounted, healer.StagingNotMounted, healer.Disconnected, healer.StaleFileHandle, healer.IOError,
			healer.StaleInContainers,
		},
		// juicedata/juicefs-csi-driver, docs/en/guide/configurations.md
		// ("Automatic mount point recovery") and pkg/controller/pod_driver.go:
		// requests wait while a mount pod comes back (from 0.25); else it is
		// bound anew on top of the dead mount, which stays. A mount point without any
		// mount it only logs.
		"csi.juicefs.com": {
			healer.Disconnected, healer.StaleFileHandle, healer.IOError, healer.NotResponding, healer.StackedMounts,
		},
		// PaddlePaddle/PaddleFlow,
		// docs/zh_cn/reference/filesystem/csi_mountpoint_recovery.md (from
		// 1.4.3): a mount process that died comes back with its mounts.
		"paddleflowstorage": {healer.Disconnected},
		// longhorn/longhorn issue 6386 and longhorn/website,
		// high-availability/recover-volume.md: every 10 s a staged mount that
		// became read-only is remounted; after an unexpected detach the pods
		// are deleted, so that kubelet mounts the volume anew.
		"driver.longhorn.io": {
			healer.ReadOnlyFilesystem, healer.FilesystemShutdown, healer.IOError, healer.DeviceMissing, healer.DeviceReadError,
		},
		// openebs/mayastor, release 2.0.0 ("On-demand nexus switch-over"), and
		// openebs/mayastor-control-plane pull request 302: an agent on each node
		// replaces NVMe paths that failed; requests wait meanwhile.
		"io.openebs.csi-mayastor": {healer.PathsFailed, healer.NotResponding},
	}
}

// Leaves is true when the driver repairs such a condition itself.
func (s SelfRepair) Leaves(driver string, reason healer.Reason) bool {
	return slices.Contains(s[driver], reason)
}

// ParseSelfRepair changes the default by a text in YAML: a driver with the
// reasons that are left to it, instead of those it has here, or with none, which
// takes it off the list. With an error it gives the default.
func ParseSelfRepair(text string) (SelfRepair, error) {
	var changes SelfRepair
	if err := yaml.UnmarshalStrict([]byte(text), &changes); err != nil {
		return DefaultSelfRepair(), fmt.Errorf("not a map of drivers to lists of reasons: %w", err)
	}
	var errs []error
	for _, driver := range slices.Sorted(maps.Keys(changes)) {
		for _, reason := range changes[driver] {
			if !slices.Contains(allReasons(), reason) {
				errs = append(errs, fmt.Errorf("driver %q: %q is no reason; the reasons are %s", driver, reason, join(allReasons())))
			}
		}
	}
	if len(errs) > 0 {
		return DefaultSelfRepair(), errors.Join(errs...)
	}
	s := DefaultSelfRepair()
	for driver, reasons := range changes {
		if s[driver] = reasons; len(reasons) == 0 {
			delete(s, driver)
		}
	}
	return s, nil
}

// allReasons are the names that a list may hold: a misspelt one would leave
// nothing to anybody, and nobody would notice.
func allReasons() []healer.Reason {
	return []healer.Reason{
		healer.NotMounted, healer.StagingNotMounted, healer.WrongVolumeMounted, healer.StackedMounts,
		healer.Disconnected, healer.StaleFileHandle, healer.IOError, healer.FilesystemShutdown,
		healer.ReadOnlyFilesystem, healer.PermissionDenied, healer.NotResponding, healer.Frozen,
		healer.SlowResponse, healer.OutOfSpace, healer.OutOfInodes, healer.FilesystemErrors,
		healer.DeviceMissing, healer.DeviceReadError, healer.DeviceMediaError, healer.DeviceReadOnly, healer.DeviceSizeChanged,
		healer.BackingFileGone, healer.DeviceMappingDead, healer.PathsFailed, healer.NotABlockDevice,
		healer.StaleInContainers, healer.ContainerUnverified, healer.ContainerOnBareDirectory,
		healer.ContainerKeptPlaceholder, healer.ContainerOnOldDevice, healer.TargetNotEmpty,
	}
}

func join(reasons []healer.Reason) string {
	names := make([]string, 0, len(reasons))
	for _, r := range reasons {
		names = append(names, string(r))
	}
	return strings.Join(names, ", ")
}
