package integration

import (
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"

	"github.com/csi-addons/node-healer/test/harness"
	"github.com/csi-addons/node-healer/test/harness/cluster"
)

// A driver stages a volume that is ReadOnlyMany read-only, and its pods need not say read-only
// themselves: nothing is wrong with it, also for a caller that does not say how it is used.
func TestVolumeForReaders(t *testing.T) {
	m := newMember(t)
	m.Start()
	for access, want := range map[corev1.PersistentVolumeAccessMode]string{
		corev1.ReadOnlyMany:  "healthy",
		corev1.ReadWriteMany: "abnormal",
	} {
		v := m.newClaimed("ext4", "staged-for-"+strings.ToLower(string(access)), func(v *cluster.Volume) { v.Access = access })
		harness.Must(t, unix.Mount("", v.Staging, "", unix.MS_REMOUNT|unix.MS_RDONLY, ""))
		if want == "healthy" {
			m.Expect(want, v.Request())
		} else {
			m.Expect(want, v.Request(), "ReadOnlyFilesystem")
		}
	}
}
