package integration

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/csi-addons/node-healer/test/harness"
	"github.com/csi-addons/node-healer/test/harness/faultfs"
)

// TestIdleWorkersHoldNothing inspects workers that have just probed volumes of every
// kind: they hold nothing of a volume, and its disk is free as soon as a driver has
// unmounted it.
func TestIdleWorkersHoldNothing(t *testing.T) {
	for name, ownNamespace := range map[string]bool{"in the host's namespace": false, "from another namespace": true} {
		t.Run(name, func(t *testing.T) {
			n := harness.NewNode(t, "--standalone")
			if ownNamespace {
				n.Args = append(n.Args, fmt.Sprintf("--host-mount-namespace=/proc/%d/ns/mnt", os.Getpid()))
				n.Namespace = true
			}
			n.Start()
			var volumes []*harness.Volume
			for _, fs := range kinds {
				volumes = append(volumes, n.NewVolume(fs, "checked "+fs))
			}
			served, _ := n.NewFUSEVolume("checked fuse", faultfs.Config{})
			for _, v := range append(volumes, served) {
				n.Expect("healthy", v.Request())
				v.Unpublish()
				n.Expect("healed", v.Request())
			}
			// Those that healed, or walked over processes, have ended.
			untouched := n.NewVolume("ext4", "checked only")
			volumes = append(volumes, untouched)
			var workers []int
			harness.Eventually(t, "the workers wait for work", func() bool {
				n.Expect("healthy", untouched.Request())
				workers = n.Workers()
				return len(workers) > 0 && len(workers) <= idleWorkers && !slices.ContainsFunc(workers, begins)
			})
			for _, pid := range workers {
				holdsNothing(t, pid)
				namespaces := map[string]bool{namespaceOf(t, os.Getpid()): true, namespaceOf(t, n.PID()): true}
				seesNothing(t, pid, n.Dir, namespaces)
			}
			for _, v := range volumes {
				harness.Must(t, unix.Unmount(v.MountPoint(), 0))
				harness.Must(t, unix.Unmount(v.StagedFile(), 0))
				if v.Device == "" {
					continue
				}
				if err := claim(v.Device); err != nil {
					t.Errorf("%s is unmounted, and its disk is not free: %v", v.FS, err)
				}
			}
			if now := n.Workers(); len(now) == 0 || slices.ContainsFunc(now, func(pid int) bool { return !slices.Contains(workers, pid) }) {
				t.Error("the workers are others by now: the test shows nothing")
			}
		})
	}
}

// begins reports whether a worker still has a descriptor that it closes before it waits for work: of
// the namespace that it enters, or one that the server inherited. What a worker opens itself is closed
// on exec; the first four are the standard ones and the socket.
func begins(pid int) bool {
	open, err := filepath.Glob(fmt.Sprintf("/proc/%d/fdinfo/*", pid))
	return err != nil || slices.ContainsFunc(open, func(info string) bool {
		fd, _ := strconv.Atoi(filepath.Base(info))
		raw, err := os.ReadFile(info)
		if fd <= 3 || err != nil {
			return false
		}
		_, flags, _ := strings.Cut(string(raw), "flags:\t")
		flags, _, _ = strings.Cut(flags, "\n")
		bits, err := strconv.ParseUint(flags, 8, 64)
		return err != nil || bits&unix.O_CLOEXEC == 0
	})
}

// seesNothing checks that no thread of a worker has a directory, a mapping or a
// mount namespace of a volume.
func seesNothing(t *testing.T, pid int, dir string, namespaces map[string]bool) {
	t.Helper()
	threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*", pid))
	harness.Must(t, err)
	for _, thread := range threads {
		for _, link := range []string{"cwd", "root"} {
			if at := readLink(t, filepath.Join(thread, link)); at != "/" {
				t.Errorf("an idle worker has %s as its %s", at, link)
			}
		}
		if ns := readLink(t, filepath.Join(thread, "ns/mnt")); !namespaces[ns] {
			t.Errorf("an idle worker is in another mount namespace, %s", ns)
		}
	}
	maps, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", pid))
	harness.Must(t, err)
	if strings.Contains(string(maps), dir) {
		t.Errorf("an idle worker has a file of a volume mapped:\n%s", maps)
	}
}

func namespaceOf(t *testing.T, pid int) string {
	t.Helper()
	return readLink(t, fmt.Sprintf("/proc/%d/ns/mnt", pid))
}

func readLink(t *testing.T, link string) string {
	t.Helper()
	to, err := os.Readlink(link)
	harness.Must(t, err)
	return to
}
