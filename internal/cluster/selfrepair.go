package cluster

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/csi-addons/node-healer/pkg/api/clustersettings"
	"github.com/csi-addons/node-healer/pkg/healer"
)

// selfRepair has, by CSI driver, the conditions that are left to the driver: it
// repairs them itself, and two that repair one mount interfere with each other.
type selfRepair map[string][]healer.Reason

// defaultSelfRepair returns the drivers that repair volumes in use by default, as
// their maintainers document it or their code shows. Drivers that do so only when
// they stage or publish again, or only behind an option that is off, are not among
// them (docs/policy.md names some).
func defaultSelfRepair() selfRepair {
	return selfRepair{
		// seaweedfs/seaweedfs-csi-driver, pull requests 212 and 255 and
		// pkg/driver/health_monitor.go: every 30 s it stages dead mounts again,
		// binds lost publish paths again, and enters the containers. It leaves
		// hanging mounts alone.
		"seaweedfs-csi-driver": {
			healer.NotMounted, healer.StagingNotMounted, healer.Disconnected, healer.StaleFileHandle, healer.IOError,
			healer.StaleInContainers,
		},
		// juicedata/juicefs-csi-driver, docs/en/guide/configurations.md
		// ("Automatic mount point recovery") and internal/controller/pod_driver.go:
		// requests wait while a mount pod comes back (from 0.25); else it is
		// bound again on top of the dead mount, which stays. A mount point without
		// any mount is only logged.
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
		// are deleted, so that kubelet mounts the volume again.
		"driver.longhorn.io": {
			healer.ReadOnlyFilesystem, healer.FilesystemShutdown, healer.IOError, healer.DeviceMissing, healer.DeviceReadError,
		},
		// openebs/mayastor, release 2.0.0 ("On-demand nexus switch-over"), and
		// openebs/mayastor-control-plane pull request 302: an agent on each node
		// replaces NVMe paths that failed; requests wait meanwhile.
		"io.openebs.csi-mayastor": {healer.PathsFailed, healer.NotResponding},
	}
}

// defaultSelfRepairGrace is for how long something is left to a driver that repairs it itself. One
// whose plugin was started anew may have forgotten its volumes, and repairs none then.
const defaultSelfRepairGrace = 2 * time.Minute

func parseGrace(text string) (time.Duration, error) {
	grace, err := time.ParseDuration(text)
	if err != nil || grace < 0 {
		return 0, fmt.Errorf("%.40q is no duration such as 2m", text)
	}
	return grace, nil
}

// left returns why a step is refused for a reason that is left to the driver; nil: it is not, or
// the driver had its time. Its time begins anew when its pod is ready again: it may be at work then.
func (p *permit) left(s settings, reason healer.Reason, back time.Time) error {
	driver := p.name.driver
	if !slices.Contains(s.selfRepair[driver], reason) {
		return nil
	}
	grace, set := s.selfRepairGrace[driver]
	if !set {
		grace = defaultSelfRepairGrace
	}
	since := p.cluster.reporter.foundSince(volumeKey{driver, p.name.handle}, reason)
	if since.IsZero() {
		since = time.Now()
	}
	if back.After(since) {
		since = back
	}
	if time.Since(since) >= grace {
		return nil
	}
	return fmt.Errorf("%s is left to driver %s, which repairs it itself, until %s (%s in %s changes that, and %s for how long)",
		reason, driver, since.Add(grace).UTC().Format(time.RFC3339), clustersettings.SelfRepair, p.cluster.configMapName(), clustersettings.SelfRepairGrace)
}

// parseSelfRepair returns the default, changed by a text in YAML: a driver with the
// reasons that are left to it, which replace those it has here, or with none, which
// removes it.
func parseSelfRepair(text string) (selfRepair, error) {
	changes, err := parseYAML[selfRepair](text)
	if err != nil {
		return nil, fmt.Errorf("not a map of drivers to lists of reasons: %w", err)
	}
	s := defaultSelfRepair()
	for _, driver := range slices.Sorted(maps.Keys(changes)) {
		s[driver] = changes[driver]
		for _, reason := range changes[driver] {
			if !slices.Contains(healer.Reasons(), reason) {
				err = errors.Join(err, fmt.Errorf("driver %q: %q is no reason (docs/conditions.md lists them)", driver, reason))
			}
		}
	}
	return s, err
}
