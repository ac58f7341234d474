package mount

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/csi-addons/node-healer/pkg/facts"
)

// An overlay with many layers has options of a megabyte, and what was moved deep down
// a path of one, with a mount after each.
func TestParseLongLines(t *testing.T) {
	deep := "5 1 0:49 /" + strings.Repeat(`\012`, 1<<20) + " /x rw shared:2 - ext4 src ro\n"
	long := "7 1 0:50 /sub /over rw,nosuid shared:3 - overlay src rw,lowerdir=" + strings.Repeat(`a\012`, 1<<20) + ",last=1\n"
	text := "1 0 0:20 / / rw - ext4 /dev/a rw\n" + deep + long + "8 1 0:51 / /after ro - tmpfs b rw"
	var got []string
	err := Visit(strings.NewReader(text), func(e facts.Mount) error {
		if e.OldID == 5 {
			if len(e.Root) > 5000 {
				t.Errorf("a path of %d bytes is kept", len(e.Root))
			}
			e.Root = e.Root[:1]
		}
		got = append(got, fmt.Sprint(e.OldID, e.Root, e.Path, " ", e.Attr, e.Propagation.Shared, e.FSType, e.Source, e.SuperOptions))
		return nil
	})
	want := []string{"1// rw,strictatime 0ext4/dev/a[rw]", "5//x rw,strictatime 2ext4src[ro]", "7/sub/over rw,nosuid,strictatime 3overlaysrc[rw]", "8//after ro,strictatime 0tmpfsb[rw]"}
	if err != nil || strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("%v\n%s", err, strings.Join(got, "\n"))
	}
}

// Without its upper layer a writable overlay would look like one of layers that are only read.
func TestParseLongOptionsOfAnOverlay(t *testing.T) {
	var layers []string
	for i := range 300 {
		layers = append(layers, fmt.Sprintf("lowerdir+=/var/lib/containerd/io.containerd.snapshotter.v1.overlayfs/snapshots/%d/fs", i))
	}
	for name, lower := range map[string]string{
		"layer by layer":               strings.Join(layers, ","),
		"cut in the upper layer":       "lowerdir=" + strings.Repeat("/a:", 5300) + "/b",
		"cut right before the upper":   "lowerdir=" + strings.Repeat("a", fieldLimit-len("ro,lowerdir=")),
		"cut right after the \",\"":    "lowerdir=" + strings.Repeat("a", fieldLimit-len("ro,lowerdir=,")),
		"cut in the middle of a layer": "lowerdir=" + strings.Repeat("/a:", 1<<20) + "/b",
	} {
		mounts, err := Parse(strings.NewReader("1 0 0:5 / /m rw - overlay o ro," + lower + ",upperdir=/" + strings.Repeat("u", 4000) + ",workdir=/w\n"))
		if err != nil || len(mounts) != 1 || strings.Join(mounts[0].SuperOptions, " ") != "ro" || !mounts[0].SuperReadOnly {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestParseFails(t *testing.T) {
	stop := errors.New("enough")
	for name, tc := range map[string]struct {
		text  string
		visit error
		want  string
	}{
		"no table":           {"1 0 x\n", nil, "line 1"},
		"a line of one word": {strings.Repeat("a", 1<<20) + "\n", nil, "line 1"},
		"the visitor":        {"1 0 0:20 / / rw - ext4 a rw\n", stop, "enough"},
	} {
		if err := Visit(strings.NewReader(tc.text), func(facts.Mount) error { return tc.visit }); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := Visit(iotest.ErrReader(stop), func(facts.Mount) error { return nil }); !errors.Is(err, stop) {
		t.Errorf("a file that cannot be read: %v", err)
	}
}
