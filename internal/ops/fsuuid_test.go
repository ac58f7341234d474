package ops

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// Every way to ask for a UUID returns what blkid reads from the disk.
func TestFilesystemUUID(t *testing.T) {
	if os.Geteuid() != 0 {
		if os.Getenv("CI") != "" {
			t.Fatal("needs root, and in CI a test that would skip fails")
		}
		t.Skip("needs root, for mounts and loop devices")
	}
	for fs, c := range map[string]struct {
		mkfs    []string
		queries []int
	}{
		"ext4":  {[]string{"mkfs.ext4", "-q"}, []int{0, 1}},
		"xfs":   {[]string{"mkfs.xfs", "-q"}, []int{0, 2}},
		"btrfs": {[]string{"mkfs.btrfs", "-q"}, []int{3}},
	} {
		t.Run(fs, func(t *testing.T) {
			dir := t.TempDir()
			image, target := filepath.Join(dir, "image"), filepath.Join(dir, "mounted")
			must(t, os.WriteFile(image, nil, 0o600))
			must(t, os.Truncate(image, 300<<20))
			must(t, os.Mkdir(target, 0o700))
			output(t, append(c.mkfs, image)...)
			want := output(t, "blkid", "-o", "value", "-s", "UUID", image)
			output(t, "mount", "-o", "loop", image, target)
			defer output(t, "umount", target)
			root, err := os.Open(target)
			must(t, err)
			defer root.Close()
			for _, q := range c.queries {
				if got := askUUID(int(root.Fd()), q); got != want {
					t.Errorf("query %d: %q, blkid %q", q, got, want)
				}
			}
			if got := filesystemUUID(int(root.Fd())); got != want {
				t.Errorf("got %q, want %q", got, want)
			}
			if fs == "btrfs" {
				clone := filepath.Join(dir, "clone")
				must(t, os.Mkdir(clone, 0o700))
				output(t, "cp", image, image+"2")
				if out, err := exec.Command("mount", "-o", "loop", image+"2", clone).CombinedOutput(); err != nil {
					t.Skipf("below Linux 6.7 no clone is mounted beside its origin: %s", out)
				}
				defer output(t, "umount", clone)
				cloned, err := os.Open(clone)
				must(t, err)
				defer cloned.Close()
				if got := filesystemUUID(int(cloned.Fd())); got != want {
					t.Errorf("a clone beside its origin: got %q, want %q", got, want)
				}
			}
		})
	}
	root, err := os.Open("/proc/self")
	must(t, err)
	defer root.Close()
	if got := filesystemUUID(int(root.Fd())); got != "" {
		t.Errorf("procfs has the UUID %q", got)
	}
}

func output(t *testing.T, command ...string) string {
	t.Helper()
	out, err := exec.Command(command[0], command[1:]...).CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %v\n%s", command, err, out)
	}
	return strings.TrimSpace(string(out))
}
