package engine

import (
	"context"
	"errors"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/csi-addons/node-healer/internal/node"
	"github.com/csi-addons/node-healer/internal/wanted"
	"github.com/csi-addons/node-healer/pkg/facts"
	"github.com/csi-addons/node-healer/pkg/healer"
)

// The changes that make a write tell more.

func erred(b *fixture) { b.errors = &facts.FilesystemErrors{Count: 1, LastTime: time.Now()} }

func superReadOnly(b *fixture) {
	for _, p := range []string{podA, staging} {
		b.change(p, func(m *facts.Mount) { m.SuperReadOnly = true })
	}
}

func superOption(o string) func(*fixture) {
	return func(b *fixture) {
		for _, p := range []string{podA, staging} {
			b.change(p, func(m *facts.Mount) { m.SuperOptions = append(m.SuperOptions, o) })
		}
	}
}

// overUpper makes the target an overlay that writes to a filesystem
// mounted at /data.
func overUpper(upper func(*facts.Mount)) func(*fixture) {
	return func(b *fixture) {
		b.mount("/data", facts.Dev{Major: 8, Minor: 99})
		b.change("/data", upper)
		b.change(podA, func(m *facts.Mount) {
			m.ID = 900 // mounted after what it lies on
			m.Dev, m.FSType, m.Source = facts.Dev{Minor: 77}, "overlay", "overlay"
			m.SuperOptions = []string{"lowerdir=/data/l", "upperdir=/data/u", "workdir=/data/w"}
		})
	}
}

func answers(a facts.Answer) func(*fixture) {
	return func(b *fixture) { b.answers[disk] = node.Inspection{Kind: facts.KindDirectory, Answer: a} }
}

func attrs(a facts.Attr, mountPoints ...string) func(*fixture) {
	return func(b *fixture) {
		for _, p := range mountPoints {
			b.change(p, func(m *facts.Mount) { m.Attr = a })
		}
	}
}

func refuseWrites(b *fixture) { b.notes.noWrite = errors.New("it is not wanted") }

// hasBlock makes the target that of a raw block volume.
func hasBlock(b *fixture) {
	l := b.files[podA]
	l.Kind, l.Rdev = facts.KindBlock, disk
	b.files[podA] = l
	b.unmount(staging)
}

var writeTries = map[string]struct {
	never  bool
	check  bool
	dryRun bool
	spoil  []func(*fixture)
	want   []string // where
	why    string   // why not, if more could be told
}{
	"healthy":               {},
	"healthy, never":        {never: true},
	"errors":                {spoil: []func(*fixture){erred}, want: []string{podA}},
	"errors, never":         {never: true, spoil: []func(*fixture){erred}},
	"read-only":             {spoil: []func(*fixture){superReadOnly}, want: []string{podA}},
	"read-only by an error": {spoil: []func(*fixture){superOption("emergency_ro")}, want: []string{podA}},
	"overlay":               {spoil: []func(*fixture){overUpper(func(*facts.Mount) {})}},
	"overlay over a dead upper": {
		spoil: []func(*fixture){overUpper(func(m *facts.Mount) { m.SuperOptions = []string{"shutdown"} })},
		want:  []string{podA},
	},
	"overlay over a read-only upper": {
		spoil: []func(*fixture){overUpper(func(m *facts.Mount) { m.SuperReadOnly = true })},
		want:  []string{podA},
	},
	"overlay over an upper that turned read-only": {
		spoil: []func(*fixture){overUpper(func(m *facts.Mount) { m.SuperOptions = []string{"emergency_ro"} })},
		want:  []string{podA},
	},

	// More would not be told.
	"shut down":          {spoil: []func(*fixture){erred, superOption("shutdown")}},
	"silent":             {spoil: []func(*fixture){erred, answers(facts.Answer{Asked: true, TimedOut: true})}},
	"failed a read":      {spoil: []func(*fixture){erred, answers(facts.Answer{Asked: true, Errno: syscall.EIO})}},
	"a raw block volume": {spoil: []func(*fixture){hasBlock, erred}},

	// It may not be written to here.
	"published read-only":  {spoil: []func(*fixture){erred, attrs(facts.AttrReadOnly, podA)}, want: []string{staging}},
	"read-only everywhere": {spoil: []func(*fixture){erred, attrs(facts.AttrReadOnly|facts.AttrNoExec, podA, staging)}},
	"the mode, errors":     {check: true, spoil: []func(*fixture){erred}, why: "--mode=check"},
	"the mode, healthy":    {check: true},
	"a dry run, errors":    {dryRun: true, spoil: []func(*fixture){erred}, why: "--dry-run"},
	"a dry run, healthy":   {dryRun: true},
	"the gate":             {spoil: []func(*fixture){erred, refuseWrites}, why: "it is not wanted"},
	"the gate, healthy":    {spoil: []func(*fixture){refuseWrites}},
	"the gate, and no disk": {
		want: []string{podA},
		spoil: []func(*fixture){refuseWrites, superReadOnly, func(b *fixture) {
			for _, p := range []string{podA, staging} {
				b.change(p, func(m *facts.Mount) { m.Dev, m.FSType, m.Source = facts.Dev{Minor: 60}, "nfs4", "srv:/a" })
			}
		}},
	},
}

func TestWhenAWriteIsTried(t *testing.T) {
	for name, tc := range writeTries {
		t.Run(name, func(t *testing.T) {
			b := newFixture(t, func(c *Config) {
				c.CheckOnly, c.DryRun = tc.check, tc.dryRun
				if tc.never {
					c.NoWrite = true
				}
			})
			for _, spoil := range tc.spoil {
				spoil(b)
			}
			b.heal(volume)
			if !slices.Equal(b.writes, tc.want) {
				t.Errorf("written at %q, want %q", b.writes, tc.want)
			}
			for _, sb := range b.last().Superblocks {
				if (sb.Write.Forbidden == "") != (tc.why == "") || !strings.Contains(sb.Write.Forbidden, tc.why) {
					t.Errorf("%s: forbidden with %q, want %q", sb.FSType, sb.Write.Forbidden, tc.why)
				}
			}
		})
	}
}

// What is staged for readers is not written to. A filesystem that takes writes all the same is asked.
func TestWriteToAVolumeForReaders(t *testing.T) {
	for readOnly, writes := range map[bool]int{true: 0, false: 1} {
		b := newFixture(t)
		b.healthy()
		erred(b)
		b.notes.readersOnly = true
		for _, p := range []string{podA, staging} {
			b.change(p, func(m *facts.Mount) { m.SuperReadOnly = readOnly })
		}
		b.heal(volume)
		if len(b.writes) != writes {
			t.Errorf("read-only %t: written at %q", readOnly, b.writes)
		}
	}
}

func TestWriteToARecordedVolume(t *testing.T) {
	for name, tc := range map[string]struct {
		spoil func(*fixture)
		why   string
	}{
		"the same disk":       {func(*fixture) {}, ""},
		"no UUID told":        {answers(facts.Answer{Asked: true}), ""},
		"another serial":      {func(b *fixture) { setSerial(b, "other") }, "serial number"},
		"a smaller disk":      {func(b *fixture) { setSize(b, 1) }, "1 bytes"},
		"nothing known of it": {func(b *fixture) { b.devices[disk] = facts.BlockDevice{Dev: disk} }, "serial number"},
		"another filesystem": {func(b *fixture) {
			b.answers[disk] = node.Inspection{Kind: facts.KindDirectory, ProbeFacts: facts.ProbeFacts{UUID: "uuid-2"}, Answer: facts.Answer{Asked: true}}
		}, "filesystem UUID"},
	} {
		b := newFixture(t)
		b.healthy()
		erred(b)
		tc.spoil(b)
		b.heal(volume)
		why := b.last().Superblocks[disk].Write.Forbidden
		if wrote := len(b.writes) == 1; wrote != (tc.why == "") || !strings.Contains(why, tc.why) {
			t.Errorf("%s: written at %q, forbidden with %q", name, b.writes, why)
		}
	}
}

func setSize(b *fixture, bytes int64) {
	d := b.devices[disk]
	d.Identity.Size = bytes
	b.devices[disk] = d
}

// A volume that was read-only when it was healthy is not written to.
func TestNoWriteToWhatWasReadOnly(t *testing.T) {
	b := newFixture(t, func(c *Config) { c.NoWrite = true })
	superReadOnly(b)
	b.healthy()
	b.engine.cfg.NoWrite = false
	erred(b)
	b.heal(volume)
	if b.writes != nil {
		t.Errorf("written at %q", b.writes)
	}
}

func TestNoWriteToWhatIsFrozen(t *testing.T) {
	b := newFixture(t)
	erred(b)
	b.answers[disk] = node.Inspection{Kind: facts.KindDirectory, ProbeFacts: facts.ProbeFacts{UUID: "uuid-1"}, Answer: facts.Answer{Asked: true, Frozen: true}}
	b.heal(volume)
	if b.writes != nil {
		t.Errorf("written at %q", b.writes)
	}
}

func TestNoWriteForAReader(t *testing.T) {
	b := newFixture(t)
	erred(b)
	v := volume
	v.Capability = &healer.Capability{Access: healer.AccessMount, ReadOnly: true}
	b.heal(v)
	if b.writes != nil {
		t.Errorf("written at %q", b.writes)
	}
}

// A request may name a directory of what is staging: nothing is created in that.
func TestNoWriteInADirectoryOfTheVolume(t *testing.T) {
	b := newFixture(t)
	erred(b)
	b.unmount(podA)
	inContainer := staging + "/dir"
	b.files[inContainer] = facts.PathInfo{Kind: facts.KindDirectory}
	b.heal(healer.Volume{ID: volID, Path: inContainer, StagingPath: staging})
	if !slices.Equal(b.writes, []string{staging}) {
		t.Errorf("written at %q", b.writes)
	}
}

func TestWhatAWriteShows(t *testing.T) {
	silence := facts.Answer{Asked: true, TimedOut: true, Writing: true, Waits: []string{"percpu_rwsem_wait"}}
	for name, tc := range map[string]struct {
		wrote facts.Write
		want  func(healer.Superblock) bool
	}{
		"nothing new": {facts.Write{Answer: facts.Answer{Asked: true}}, func(sb healer.Superblock) bool { return sb.Write.Asked && sb.Answer.Errno == 0 }},
		"an errno is not the read's": {
			facts.Write{Answer: facts.Answer{Asked: true, Op: "write", Errno: syscall.EIO}},
			func(sb healer.Superblock) bool {
				return sb.Write.Errno == syscall.EIO && sb.Answer.Errno == 0 && sb.Answer.Asked
			},
		},
		"silence is the answer": {
			facts.Write{Answer: silence},
			func(sb healer.Superblock) bool {
				return sb.Answer.TimedOut && sb.Answer.Writing && sb.Answer.Waits != nil && sb.Kind == facts.KindDirectory
			},
		},
		"a freeze is no silence": {
			facts.Write{Unable: true, Answer: facts.Answer{Frozen: true, Waits: []string{"percpu_rwsem_wait"}}},
			func(sb healer.Superblock) bool {
				return sb.Answer.Frozen && !sb.Answer.TimedOut && sb.Answer.Waits != nil
			},
		},
	} {
		b := newFixture(t)
		erred(b)
		b.wrote = tc.wrote
		b.heal(volume)
		if sb := b.last().Superblocks[disk]; !tc.want(sb) || len(b.writes) != 1 {
			t.Errorf("%s: %+v, written at %q", name, sb, b.writes)
		}
	}
	b := newFixture(t)
	erred(b)
	b.writeErr = errors.New("worker lost")
	if _, err := b.engine.Heal(context.Background(), volume); healer.KindOf(err) != healer.KindUnknown || !errors.Is(err, b.writeErr) {
		t.Errorf("a write that could not be asked for: %v", err)
	}
}

// Whoever of the pods runs: one mount point at which a write may be tried is enough.
func TestWriteAtTheMountPointThatIsInUse(t *testing.T) {
	b := newFixture(t, func(c *Config) { c.Gate = wanted.Gate{Node: c.Node} })
	erred(b)
	b.publish(podB)
	b.heal(volume)
	if why := b.last().Superblocks[disk].Write.Forbidden; b.writes != nil || !strings.Contains(why, "no running container") {
		t.Errorf("no container runs: written at %q, forbidden with %q", b.writes, why)
	}
	b.pods["uid-b"] = disk
	b.heal(volume)
	if why := b.last().Superblocks[disk].Write.Forbidden; !slices.Equal(b.writes, []string{podB}) || why != "" {
		t.Errorf("the other pod runs: written at %q, forbidden with %q", b.writes, why)
	}
}

func TestErrorsRose(t *testing.T) {
	boot := time.Unix(1000, 999)
	for name, tc := range map[string]struct {
		recorded int64 // -1: no record
		sb       healer.Superblock
		want     bool
	}{
		"counts none":                      {0, healer.Superblock{}, false},
		"counted none":                     {0, ext4Counted(0, 0), false},
		"the first":                        {0, ext4Counted(1, 0), true},
		"the same":                         {5, ext4Counted(5, 2000), false},
		"more":                             {5, ext4Counted(6, 0), true},
		"checked":                          {5, ext4Counted(0, 0), false},
		"checked, and again":               {5, ext4Counted(1, 0), true},
		"cannot be told any more":          {5, healer.Superblock{}, false},
		"no record, this boot":             {-1, ext4Counted(1, 2000), true},
		"no record, the second of booting": {-1, ext4Counted(1, 1000), true},
		"no record, an earlier boot":       {-1, ext4Counted(1, 999), false},
		"no record, no time":               {-1, ext4Counted(1, 0), false},
	} {
		c := healer.Case{BootTime: boot}
		if tc.recorded >= 0 {
			c.Record = &healer.Record{FilesystemErrors: uint64(tc.recorded)}
		}
		if got := healer.ErrorsRose(c, tc.sb); got != tc.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

// ext4Counted has counted errors, the last at a second, 0 for unknown.
func ext4Counted(n uint64, last int64) healer.Superblock {
	e := &facts.FilesystemErrors{Count: n}
	if last != 0 {
		e.LastTime = time.Unix(last, 0)
	}
	return healer.Superblock{Errors: e}
}
