package mounts

import (
	"fmt"
	"slices"
	"syscall"
	"time"

	"github.com/csi-addons/node-healer/pkg/api"
	"github.com/csi-addons/node-healer/pkg/facts"
	"github.com/csi-addons/node-healer/pkg/healer"
)

const (
	adviceShutdown      = "see the kernel log for the cause, then delete all pods on this node that use the volume, so that it is unmounted, checked and staged anew"
	adviceSubvolume     = "see whether the subvolume was set read-only: btrfs property get"
	adviceErrors        = "see the kernel log; delete all pods on this node that use the volume, and check the filesystem while it is not mounted"
	adviceShared        = "see the kernel log for the cause, then end all that uses the filesystem, of which the volume is a directory, and check it: deleting the volume's pods alone does not unmount it"
	adviceDaemon        = "see why the daemon or the server behind the mount is gone; then delete the pod"
	adviceNoAnswer      = "see in the log of the daemon behind the mount why it does not answer"
	adviceNotResponding = "see whether the storage behind the volume can be reached"
	adviceThaw          = "see what froze it (a snapshot or a backup under way); fsfreeze --unfreeze ends it"
	adviceSlow          = "see what keeps the storage behind the volume busy"
	adviceLater         = "this may pass by itself: call again in a moment"
	adviceSpace         = "delete what is not needed, or expand the volume"
)

// lateAnswers is how many answers in a row must come late to be reported: a single one
// may have met a busy moment.
const lateAnswers = 3

// judgeSuperblock returns what is wrong with the filesystem or device behind a mount
// point. A condition that makes it inaccessible is reported alone: what follows from it
// is no second fault. Only beside a filesystem that shut itself down stands what is wrong with
// the device, and beside xfs's EIO: both shut themselves down when the device goes, and a new stage would
// then not help.
func judgeSuperblock(c healer.Case, p healer.MountPoint) []healer.Condition {
	ev := evaluator{c: c, p: p, sb: c.Superblock(p)} // one that is missing was not asked
	if found := ev.shutdown(); found != nil {
		return append(found, ev.beneath()...)
	}
	for _, diagnose := range []func() []healer.Condition{ev.deviceGone, ev.notResponding, ev.failed, ev.shrunk} {
		if found := diagnose(); found != nil {
			return found
		}
	}
	var frozen, late []healer.Condition
	a := ev.sb.Answer
	if a.Frozen { // backups freeze a filesystem for seconds, and readers do not notice
		frozen = ev.one(healer.Degraded, healer.Frozen, adviceThaw, "reads succeed, and writers wait for a thaw%s", in(a.Waits))
	}
	if a.Late >= lateAnswers {
		late = ev.one(healer.Degraded, healer.SlowResponse, adviceSlow,
			"it answered each time, and late %d times in a row, now after %s", a.Late, a.Elapsed.Round(time.Millisecond))
	}
	return slices.Concat(frozen, ev.readOnly(), ev.errorsRose(), ev.deviceWeak(), ev.full(), late)
}

// evaluator judges one superblock at one mount point.
type evaluator struct {
	c  healer.Case
	p  healer.MountPoint
	sb healer.Superblock
}

func (ev evaluator) one(s healer.Status, r healer.Reason, advice, format string, args ...any) []healer.Condition {
	if (advice == adviceShutdown || advice == adviceErrors) && facts.IsType(ev.sb.FSType, facts.Disk) && !ev.c.ShowsAll(ev.p.Dev()) {
		advice = adviceShared
	}
	cond := conditionAt(ev.p, s, r, advice, format, args...)
	if !ev.c.AnswersAlone(ev.p) {
		cond.Superblock = ev.p.Dev()
	}
	return []healer.Condition{cond}
}

func (ev evaluator) shutdown() []healer.Condition {
	switch {
	case ev.sb.Write.ShutDown():
		return ev.one(healer.Inaccessible, healer.FilesystemShutdown, adviceShutdown,
			"%s shut itself down (fsync of the root directory fails with EIO); every write fails, whatever stat says", healer.QuoteName(ev.sb.FSType))
	case ev.sb.Shutdown:
		return ev.one(healer.Inaccessible, healer.FilesystemShutdown, adviceShutdown,
			"%s shut itself down (super option shutdown); every write fails, whatever stat says", healer.QuoteName(ev.sb.FSType))
	case ev.sb.Upper != nil && ev.sb.Upper.Shutdown:
		return ev.one(healer.Inaccessible, healer.FilesystemShutdown, adviceShutdown,
			"the %s that the overlay writes to shut itself down (super option shutdown)", healer.QuoteName(ev.sb.Upper.FSType))
	}
	return nil
}

// beneath returns what is wrong with the device of a filesystem that shut itself down.
func (ev evaluator) beneath() []healer.Condition {
	for _, diagnose := range []func() []healer.Condition{ev.deviceGone, ev.notResponding} {
		if found := diagnose(); found != nil {
			return found
		}
	}
	if ev.sb.Answer.Op == facts.OpReadDevice { // it was the device that failed
		return ev.failed()
	}
	return slices.Concat(ev.shrunk(), ev.deviceWeak())
}

// notResponding judges a superblock that did not answer. The timeout is long, so one probe is
// enough.
func (ev evaluator) notResponding() []healer.Condition {
	a := ev.sb.Answer
	within := a.Elapsed.Round(time.Millisecond)
	switch {
	case !a.Asked:
		return ev.one(healer.Inaccessible, healer.NotResponding, adviceNotResponding, "it was not probed")
	case !a.TimedOut:
		return nil
	case a.Writing:
		return ev.one(healer.Inaccessible, healer.NotResponding, adviceNotResponding,
			"reads succeed, and a write has no answer within %s%s", within, in(a.Waits))
	case facts.IsFUSE(ev.sb.FSType):
		return ev.one(healer.Inaccessible, healer.NotResponding, adviceNoAnswer, "the FUSE daemon gave no answer within %s%s", within, in(a.Waits))
	}
	return ev.one(healer.Inaccessible, healer.NotResponding, adviceNotResponding, "no answer within %s%s", within, in(a.Waits))
}

// in returns where the kernel waits, as far as that is known.
func in(waits []string) string {
	if len(waits) == 0 {
		return ""
	}
	return "; the kernel waits in " + waits[0]
}

var adviceFailed = map[healer.Reason]string{
	healer.Disconnected:    adviceDaemon,
	healer.StaleFileHandle: adviceDaemon,
	healer.DeviceMissing:   adviceDevice,
	healer.DeviceReadError: adviceSave,
	healer.IOError:         adviceShutdown,
}

// failed judges an errno, which a second probe returned too.
func (ev evaluator) failed() []healer.Condition {
	a := ev.sb.Answer
	row, failed := healer.ConditionOfProbe(ev.sb)
	if !failed && !ev.sb.Write.Unable {
		a = ev.sb.Write.Answer
		row, failed = healer.ConditionOf(healer.OpWriteCheck, a.Errno, ev.sb)
	}
	switch {
	case !failed, row.Reason == healer.ReadOnlyFilesystem: // which readOnly reports
		return nil
	case row.Reason == healer.PermissionDenied:
		return ev.judgeDenied(a)
	}
	reason, advice := row.Reason, adviceFailed[row.Reason]
	exports := a.Errno == syscall.ESTALE && facts.IsNFS(ev.sb.FSType) // ends when the server exports the directory again
	switch {
	case exports, healer.Classify(a.Errno).Tier == api.Transient:
		advice = adviceLater
	case reason == healer.IOError && facts.IsType(ev.sb.FSType, facts.MayHang) && ev.sb.Device == nil:
		advice = adviceNotResponding // a daemon may still have what was written
	}
	if d := ev.sb.Device; reason == healer.DeviceReadError && d != nil {
		name := deviceName(*d)
		if d.Mapping != nil && d.Mapping.Name != "" { // "dm-3" alone says nothing
			name = fmt.Sprintf("%s (%s)", name, mappingName(*d.Mapping))
		}
		return ev.one(healer.Inaccessible, reason, advice, "%s: %s", name, a)
	}
	if ev.p.Stale() && ev.c.AnswersAlone(ev.p) {
		advice = adviceRepublish
	}
	found := ev.one(healer.Inaccessible, reason, advice, "%s", a)
	row, failed = healer.ConditionOf(facts.OpReadDevice, ev.sb.Opened.Errno, ev.sb)
	if d := ev.sb.Device; failed && d != nil && reason == healer.IOError { // xfs shuts itself down when its device fails
		found = append(found, ev.one(healer.Inaccessible, row.Reason, adviceFailed[row.Reason],
			"%s fails as well: %s", deviceName(*d), facts.Answer{Op: facts.OpReadDevice, Errno: ev.sb.Opened.Errno})...)
	}
	return found
}

// errorsRose reports what the filesystem counted since it was last healthy.
func (ev evaluator) errorsRose() []healer.Condition {
	if !healer.ErrorsRose(ev.c, ev.sb) {
		return nil
	}
	before := uint64(0)
	if ev.c.Record != nil {
		before = ev.c.Record.FilesystemErrors
	}
	message := fmt.Sprintf("%s counted %d errors, %d when it was last healthy", healer.QuoteName(ev.sb.FSType), healer.ErrorsCounted(ev.sb), before)
	if e := ev.sb.Errors; e != nil && !e.LastTime.IsZero() {
		message += fmt.Sprintf("; the last at %s", e.LastTime.UTC().Format(time.RFC3339))
		if e.LastFunction != "" {
			message += " in " + healer.QuoteName(e.LastFunction)
		}
	}
	switch w := ev.sb.Write; {
	case w.Forbidden != "":
		message += "; no write was tried: " + w.Forbidden
	case w.Asked && !w.Unable && w.Errno == 0:
		message += "; a write still succeeds"
	}
	return ev.one(healer.Degraded, healer.FilesystemErrors, adviceErrors, "%s", message)
}

// full reports that an unprivileged writer has no block or no inode left, if the record
// shows that there were some: rclone never reports a free inode, and works.
func (ev evaluator) full() []healer.Condition {
	if !ev.meantWritable() || ev.sb.ReadOnly {
		return nil
	}
	had := func(space func(healer.MountPointRecord) bool) bool {
		return slices.ContainsFunc(ev.c.MountPoints, func(p healer.MountPoint) bool {
			return len(p.Stack) > 0 && p.Dev() == ev.sb.Dev && p.Want != nil && space(*p.Want)
		})
	}
	var found []healer.Condition
	if s := ev.sb.Space; s.Blocks > 0 && s.Available == 0 && had(func(r healer.MountPointRecord) bool { return r.HadBlocks }) {
		found = append(found, ev.one(healer.Degraded, healer.OutOfSpace, adviceSpace, "no block of %d is left for an unprivileged writer", s.Blocks)...)
	}
	if s := ev.sb.Space; s.Files > 0 && s.FreeFiles == 0 && had(func(r healer.MountPointRecord) bool { return r.HadInodes }) {
		found = append(found, ev.one(healer.Degraded, healer.OutOfInodes, adviceSpace, "no inode of %d is left", s.Files)...)
	}
	return found
}

// meantWritable reports whether the volume should be writable at any mount point.
func (ev evaluator) meantWritable() bool {
	return slices.ContainsFunc(ev.c.MountPoints, func(p healer.MountPoint) bool {
		return len(p.Stack) > 0 && p.Dev() == ev.sb.Dev && meantWritable(ev.c, p)
	})
}
