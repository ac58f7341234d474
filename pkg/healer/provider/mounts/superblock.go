package mounts

import (
	"fmt"
	"slices"
	"syscall"
	"time"

	"github.com/csi-addons/node-healer/pkg/healer"
	"github.com/csi-addons/node-healer/pkg/host"
)

const (
	adviceShutdown = "look for the cause in the kernel log, then delete all pods on this node that use the volume, so that it is unmounted, checked and staged anew"
	adviceErrors   = "look into the kernel log; delete all pods on this node that use the volume, and check the filesystem while nobody has it mounted"
	adviceDaemon   = "see why the daemon or the server behind the mount is gone; then delete the pod"
	adviceSilent   = "see whether the storage behind the volume can be reached"
	adviceThaw     = "find out who froze it (a snapshot or a backup under way); fsfreeze --unfreeze ends it"
	adviceSlow     = "see what keeps the storage behind the volume busy"
	adviceLater    = "this may pass by itself: call again in a moment"
	adviceSpace    = "delete what is not needed, or expand the volume"
)

// lateAnswers is how many answers in a row must come late before that is worth
// a word: a single one may have met a busy moment.
const lateAnswers = 3

// judgeSuperblock says what is wrong with the filesystem or device behind a
// mount point. What keeps everybody from it is said alone: what follows from that is
// no second fault.
func judgeSuperblock(c healer.Case, p healer.MountPoint) []healer.Condition {
	sb := c.Superblock(p) // one that is not there was not asked
	b := bench{c: c, p: p, sb: sb}
	for _, judge := range []func() []healer.Condition{b.shutdown, b.deviceGone, b.silent, b.failed, b.shrunk} {
		if found := judge(); found != nil {
			return found
		}
	}
	return slices.Concat(b.frozen(), b.readOnly(), b.errorsRose(), b.deviceWeak(), b.full(), b.late())
}

// bench judges one superblock at one place.
type bench struct {
	c  healer.Case
	p  healer.MountPoint
	sb host.Superblock
}

func (b bench) one(s healer.Status, r healer.Reason, advice, format string, args ...any) []healer.Condition {
	cond := healer.Condition{Status: s, Reason: r, MountPoint: b.p.Path, Message: fmt.Sprintf(format, args...), Advice: advice}
	if !b.c.AnswersAlone(b.p) {
		cond.Superblock = b.p.Dev()
	}
	return []healer.Condition{cond}
}

func (b bench) shutdown() []healer.Condition {
	switch {
	case b.sb.Write.ShutDown():
		return b.one(healer.Inaccessible, healer.FilesystemShutdown, adviceShutdown,
			"%s shut itself down (fsync of the root directory fails with EIO); every write fails, whatever stat says", healer.QuoteName(b.sb.FSType))
	case b.sb.Shutdown:
		return b.one(healer.Inaccessible, healer.FilesystemShutdown, adviceShutdown,
			"%s shut itself down (super option shutdown); every write fails, whatever stat says", healer.QuoteName(b.sb.FSType))
	case b.sb.Upper != nil && b.sb.Upper.Shutdown:
		return b.one(healer.Inaccessible, healer.FilesystemShutdown, adviceShutdown,
			"the %s that the overlay writes to shut itself down (super option shutdown)", healer.QuoteName(b.sb.Upper.FSType))
	}
	return nil
}

// silent judges a superblock that gave no answer. The timeout is long, so one
// is enough.
func (b bench) silent() []healer.Condition {
	a := b.sb.Answer
	within := a.Elapsed.Round(time.Millisecond)
	switch {
	case !a.Asked:
		return b.one(healer.Inaccessible, healer.NotResponding, adviceSilent, "it was not asked")
	case !a.Silent:
		return nil
	case a.Writing:
		return b.one(healer.Inaccessible, healer.NotResponding, adviceSilent,
			"reads answer, and a write does not within %s%s", within, in(a.Waits))
	case a.Waiting > 0:
		return b.one(healer.Inaccessible, healer.NotResponding, adviceDaemon,
			"no answer within %s; %d requests wait for the FUSE daemon%s", within, a.Waiting, in(a.Waits))
	}
	return b.one(healer.Inaccessible, healer.NotResponding, adviceSilent, "no answer within %s%s", within, in(a.Waits))
}

// in says where the kernel waits, as far as that is known.
func in(waits []string) string {
	if len(waits) == 0 {
		return ""
	}
	return "; the kernel waits in " + waits[0]
}

// frozen reports a filesystem that keeps its writers waiting. Backups freeze one
// for seconds, and readers do not notice.
func (b bench) frozen() []healer.Condition {
	if !b.sb.Answer.Frozen {
		return nil
	}
	return b.one(healer.Degraded, healer.Frozen, adviceThaw, "reads answer, and who writes waits for a thaw%s", in(b.sb.Answer.Waits))
}

// failed judges an errno, which a second probe has given too.
func (b bench) failed() []healer.Condition {
	a := b.sb.Answer
	if a.Errno == 0 {
		a = b.sb.Write.Answer
		if a.Errno == 0 || b.sb.Write.Unable || a.Errno == syscall.EROFS {
			return nil // readOnly says the last
		}
	}
	if denied(a.Errno) {
		return b.one(healer.Inaccessible, healer.PermissionDenied, adviceDenied, "%s; %s", a, whyDenied(b.sb.FSType, b.p.Stack[0]))
	}
	reason, advice := reasonOf(a, b.sb)
	if healer.Classify(healer.OpProbe, b.sb.FSType, a.Errno).Tier == healer.Transient {
		advice = adviceLater
	}
	if d := b.sb.Device; reason == healer.DeviceReadError && d != nil {
		return b.one(healer.Inaccessible, reason, advice, "%s: %s", nameInFull(*d), a)
	}
	if b.p.Stale() && b.c.AnswersAlone(b.p) {
		advice = adviceRepublish
	}
	return b.one(healer.Inaccessible, reason, advice, "%s", a)
}

// reasonOf names what an errno from a probe means.
func reasonOf(a host.Answer, sb host.Superblock) (healer.Reason, string) {
	switch a.Errno {
	case syscall.ENOTCONN, syscall.ECONNABORTED:
		return healer.Disconnected, adviceDaemon
	case syscall.ESTALE:
		return healer.StaleFileHandle, adviceDaemon
	case syscall.ENXIO, syscall.ENODEV, syscall.ENOMEDIUM:
		if sb.Device != nil {
			return healer.DeviceMissing, adviceDevice
		}
	}
	if a.OfDevice() {
		return healer.DeviceReadError, adviceDevice
	}
	return healer.IOError, adviceShutdown
}

// errorsRose reports what the filesystem counted since it was last healthy.
func (b bench) errorsRose() []healer.Condition {
	if !healer.ErrorsRose(b.c, b.sb) {
		return nil
	}
	before := uint64(0)
	if b.c.Record != nil {
		before = b.c.Record.FilesystemErrors
	}
	message := fmt.Sprintf("%s counted %d errors, %d when it was last healthy", healer.QuoteName(b.sb.FSType), healer.ErrorsCounted(b.sb), before)
	if e := b.sb.Errors; e != nil && !e.LastTime.IsZero() {
		message += fmt.Sprintf("; the last at %s", e.LastTime.UTC().Format(time.RFC3339))
		if e.LastFunction != "" {
			message += " in " + healer.QuoteName(e.LastFunction)
		}
	}
	switch w := b.sb.Write; {
	case w.Forbidden != "":
		message += "; no write was tried: " + w.Forbidden
	case w.Asked && !w.Unable && w.Errno == 0:
		message += "; a write still succeeds"
	}
	return b.one(healer.Degraded, healer.FilesystemErrors, adviceErrors, "%s", message)
}

// full reports that an unprivileged writer has nothing left of what the record
// shows there was: rclone never has a free inode, and works.
func (b bench) full() []healer.Condition {
	if !b.meantWritable() || b.sb.ReadOnly {
		return nil
	}
	had := func(space func(healer.MountPointRecord) bool) bool {
		return slices.ContainsFunc(b.c.MountPoints, func(p healer.MountPoint) bool {
			return len(p.Stack) > 0 && p.Dev() == b.sb.Dev && p.Want != nil && space(*p.Want)
		})
	}
	var found []healer.Condition
	if s := b.sb.Space; s.Blocks > 0 && s.Available == 0 && had(func(r healer.MountPointRecord) bool { return r.HadBlocks }) {
		found = append(found, b.one(healer.Degraded, healer.OutOfSpace, adviceSpace, "no block of %d is left for an unprivileged writer", s.Blocks)...)
	}
	if s := b.sb.Space; s.Files > 0 && s.FreeFiles == 0 && had(func(r healer.MountPointRecord) bool { return r.HadInodes }) {
		found = append(found, b.one(healer.Degraded, healer.OutOfInodes, adviceSpace, "no inode of %d is left", s.Files)...)
	}
	return found
}

func (b bench) late() []healer.Condition {
	if b.sb.Answer.Late < lateAnswers {
		return nil
	}
	return b.one(healer.Degraded, healer.SlowResponse, adviceSlow,
		"it answered each time, and late %d times in a row, now after %s", b.sb.Answer.Late, b.sb.Answer.Elapsed.Round(time.Millisecond))
}

// meantWritable is true when the volume should be writable at any mount point.
func (b bench) meantWritable() bool {
	return slices.ContainsFunc(b.c.MountPoints, func(p healer.MountPoint) bool {
		return len(p.Stack) > 0 && p.Dev() == b.sb.Dev && meantWritable(b.c, p)
	})
}
