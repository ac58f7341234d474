package bench

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// layOutQuestion asks for a mount table of a size, made of volumes.
type layOutQuestion struct {
	// Dir is to be the kubelet root.
	Dir    string
	Mounts int
}

// volumePaths is where a volume is mounted.
type volumePaths struct{ Staged, Published string }

// layOutMounts fills the agent's own mount namespace: tmpfs volumes, staged and
// published where kubelet has them.
func layOutMounts(q layOutQuestion) ([]volumePaths, error) {
	if err := unix.Mount("kubelet", q.Dir, "tmpfs", 0, "mode=0755"); err != nil {
		return nil, fmt.Errorf("mount the kubelet root: %w", err)
	}
	there, err := countMounts()
	if err != nil {
		return nil, err
	}
	var volumes []volumePaths
	for i := 0; there+2 <= q.Mounts; i++ {
		v := volumePaths{
			Staged:    filepath.Join(q.Dir, "plugins/kubernetes.io/csi/test.csi.example.com", fmt.Sprintf("%x", sha256.Sum256(fmt.Append(nil, i))), "globalmount"),
			Published: filepath.Join(q.Dir, fmt.Sprintf("pods/0d1c5a2e-0000-4000-8000-%012d/volumes/kubernetes.io~csi/pv-%08d/mount", i, i)),
		}
		if err := v.mount(); err != nil {
			return nil, err
		}
		volumes = append(volumes, v)
		there += 2
	}
	return volumes, nil
}

func (v volumePaths) mount() error {
	for _, dir := range []string{v.Staged, v.Published} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
	}
	if err := unix.Mount("tmpfs", v.Staged, "tmpfs", unix.MS_NOSUID, "size=4m"); err != nil {
		return fmt.Errorf("stage %s: %w", v.Staged, err)
	}
	if err := unix.Mount(v.Staged, v.Published, "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("publish %s: %w", v.Published, err)
	}
	return nil
}

func countMounts() (int, error) {
	table, err := os.ReadFile("/proc/self/mountinfo")
	return bytes.Count(table, []byte("\n")), err
}
