package integration

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/csi-addons/node-healer/test/harness"
)

// TestOverlay stages an overlay whose upper filesystem dies: what is in memory
// answers, and nothing can be written.
func TestOverlay(t *testing.T) {
	shutDown := func(t *testing.T, upper *harness.Volume) { shutdown(t, upper.Staging) }
	readOnly := func(t *testing.T, upper *harness.Volume) {
		harness.Must(t, unix.Mount("", upper.Staging, "", unix.MS_REMOUNT|unix.MS_RDONLY, ""))
	}
	failed := func(t *testing.T, upper *harness.Volume) {
		harness.Must(t, unix.Mount("", upper.Staging, "", unix.MS_REMOUNT, "errors=remount-ro"))
		countError(t, upper)
	}
	for name, c := range map[string]struct {
		upper  string
		breaks func(t *testing.T, upper *harness.Volume)
		args   []string
		says   []string
	}{
		"an ext4 that shut down":                       {upper: "ext4", breaks: shutDown, says: []string{"FilesystemShutdown", "the overlay writes to"}},
		"an ext4 that turned read-only after an error": {upper: "ext4", breaks: failed, says: []string{"ReadOnlyFilesystem"}},
		"a read-only ext4":                             {upper: "ext4", breaks: readOnly, says: []string{"ReadOnlyFilesystem", "refused a write"}},
		"a read-only ext4 and no write is tried": {
			upper: "ext4", breaks: readOnly, args: []string{"--probe-write=never"},
			says: []string{"ReadOnlyFilesystem", "the overlay writes to"},
		},
		"an xfs that shut down": {upper: "xfs", breaks: shutDown, says: []string{"IOError", "EIO"}},
	} {
		t.Run(name, func(t *testing.T) {
			n := harness.NewNode(t, append([]string{"--standalone"}, c.args...)...).Start()
			next := newNeighbour(n)
			upper := n.NewVolume(c.upper, "below the overlay")
			v := n.NewStagedVolume("overlay", "overlay", func(staging string) { overlay(t, upper.Staging, staging) })
			n.Expect("healthy", v.Request())
			c.breaks(t, upper)
			before := n.Table()
			for range 2 {
				n.Expect("abnormal", v.Request(), c.says...)
			}
			n.SameTable(before)
			next.untouched()
		})
	}
}

// overlay mounts an overlay that writes to a directory of another filesystem.
func overlay(t *testing.T, upper, target string) {
	t.Helper()
	lower := filepath.Join(t.TempDir(), "lower")
	harness.Mkdir(t, lower)
	harness.Must(t, os.WriteFile(filepath.Join(lower, "from below"), nil, 0o600))
	for _, dir := range []string{"changes", "work"} {
		harness.Mkdir(t, filepath.Join(upper, dir))
	}
	harness.Must(t, unix.Mount("overlay", target, "overlay", 0,
		"lowerdir="+lower+",upperdir="+filepath.Join(upper, "changes")+",workdir="+filepath.Join(upper, "work")))
}
