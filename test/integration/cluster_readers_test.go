package integration

import (
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"

	"github.com/csi-addons/node-healer/test/harness"
	"github.com/csi-addons/node-healer/test/harness/cluster"
)

// A driver stages a ReadOnlyMany volume read-only, and publishes it by mount(8) twice, as k8s.io/mount-utils has
// it, which leaves no read-only flag on the bind mount. Nothing is wrong with that, also for a caller that does
// not say how the volume is used.
func TestVolumeForReaders(t *testing.T) {
	m := newMember(t)
	m.Start()
	staged := func(access corev1.PersistentVolumeAccessMode) *claimed {
		volume := m.NewVolume("ext4", "staged-for-"+strings.ToLower(string(access)))
		harness.Must(t, unix.Mount("", volume.Staging, "", unix.MS_REMOUNT|unix.MS_RDONLY, ""))
		v := m.claimed(volume, func(v *cluster.Volume) { v.Access = access })
		harness.Must(t, unix.Mount("", v.MountPoint(), "", unix.MS_REMOUNT|unix.MS_BIND, ""))
		return v
	}
	m.Expect("healthy", staged(corev1.ReadOnlyMany).Request())
	m.Expect("abnormal", staged(corev1.ReadWriteMany).Request(), "ReadOnlyFilesystem")
}

// What was staged writable turned read-only, and was not staged so.
func TestVolumeForReadersThatTurnedReadOnly(t *testing.T) {
	harness.NeedsKernel(t, harness.KernelIs(6, 8), "that a mount is still the same")
	m := newMember(t)
	m.Start()
	v := m.newClaimed("ext4", "staged-writable", func(v *cluster.Volume) { v.Access = corev1.ReadOnlyMany })
	m.Expect("healthy", v.Request())
	harness.Must(t, unix.Mount("", v.Staging, "", unix.MS_REMOUNT|unix.MS_RDONLY, ""))
	m.Expect("abnormal", v.Request(), "ReadOnlyFilesystem")
}
