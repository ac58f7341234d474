package mounts

import (
	"fmt"
	"syscall"
	"time"

	"github.com/csi-addons/node-healer/pkg/healer"
	"github.com/csi-addons/node-healer/pkg/host"
)

const (
	adviceShutdown = "look for the cause in the kernel log, then delete all pods on this node that use the volume, so that it is unmounted, checked and staged anew"
	adviceDaemon   = "see why the daemon or the server behind the mount is gone; then delete the pod"
	adviceSilent   = "see whether the storage behind the volume can be reached; nothing was changed"
	adviceDenied   = "see why root is refused there (credentials, root squashing, eviction of the client); nothing was changed"
	adviceLater    = "this may pass by itself: call again in a moment"
	adviceDevice   = "see whether the disk is still attached to this node"
)

// judgeSuperblock says what is wrong with the filesystem or device behind a
// place. The first evidence counts: what follows from it is no second fault.
func judgeSuperblock(c healer.Case, p healer.Place) []healer.Condition {
	sb := c.Superblocks[p.Dev()] // one that is not there was not asked
	one := func(s healer.Status, r healer.Reason, advice, format string, args ...any) []healer.Condition {
		return []healer.Condition{{Status: s, Reason: r, Place: p.Path, Message: fmt.Sprintf(format, args...), Advice: advice}}
	}
	switch a := sb.Answer; {
	case sb.Shutdown:
		return one(healer.Inaccessible, healer.FilesystemShutdown, adviceShutdown,
			"%s shut itself down (super option shutdown); every write fails, whatever stat says", sb.FSType)
	case sb.Device != nil && sb.Device.Missing:
		return one(healer.Inaccessible, healer.DeviceMissing, adviceDevice, "block device %s is gone", deviceName(*sb.Device))
	case a.Silent:
		return one(healer.Inaccessible, healer.NotResponding, adviceSilent, "no answer within %s", a.Elapsed.Round(time.Millisecond))
	case !a.Asked:
		return one(healer.Inaccessible, healer.NotResponding, adviceSilent, "it was not asked")
	case a.Errno != 0:
		reason, advice := reasonOf(a.Errno, sb)
		if healer.Classify(healer.OpProbe, sb.FSType, a.Errno).Tier == healer.Transient {
			advice = adviceLater
		}
		return one(healer.Inaccessible, reason, advice, "%s", a)
	}
	if how := readOnlySuperblock(c, sb); how != "" {
		return one(healer.Degraded, healer.ReadOnlyFilesystem, adviceShutdown, "%s", how)
	}
	return nil
}

func deviceName(d host.BlockDevice) string {
	if d.Name != "" {
		return d.Name
	}
	return d.Dev.String()
}

// reasonOf names what an errno from a probe means.
func reasonOf(e syscall.Errno, sb host.Superblock) (healer.Reason, string) {
	switch e {
	case syscall.ENOTCONN, syscall.ECONNABORTED:
		return healer.Disconnected, adviceDaemon
	case syscall.ESTALE:
		return healer.StaleFileHandle, adviceDaemon
	case syscall.EACCES, syscall.EPERM:
		return healer.PermissionDenied, adviceDenied
	case syscall.ENXIO, syscall.ENODEV, syscall.ENOMEDIUM:
		if sb.Device != nil {
			return healer.DeviceMissing, adviceDevice
		}
	}
	return healer.IOError, adviceShutdown
}
