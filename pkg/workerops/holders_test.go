package workerops

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// whoHolds scans everything, following magic links or not.
func whoHolds(t *testing.T, follow bool, q HoldersQuery) HoldersAnswer {
	t.Helper()
	a := scanAll(t, follow, q)
	if a.Cut {
		t.Error("the answer is cut")
	}
	return a
}

func scanAll(t *testing.T, follow bool, q HoldersQuery) HoldersAnswer {
	t.Helper()
	proc, err := openProcfs()
	must(t, err)
	defer proc.close()
	s := newScan(proc, q)
	s.owners, err = newOwners()
	must(t, err)
	if follow && !s.followLinks {
		t.Skip("this kernel has filesystems whose magic links are not followed")
	}
	s.followLinks = follow
	a, err := s.run(time.Minute)
	must(t, err)
	return a
}

// howBy returns how one process holds something; 0 when it does not.
func howBy(held Held, pid int) How {
	for _, p := range held.Processes {
		if p.PID == pid {
			return p.How
		}
	}
	return 0
}

var bothWays = map[string]bool{"through links": true, "by procfs": false}

func TestHoldersOfAMountedVolume(t *testing.T) {
	for _, fs := range []string{"ext4", "btrfs", "tmpfs"} {
		t.Run(fs, func(t *testing.T) {
			v, other := newVolume(t, fs), newVolume(t, "tmpfs")
			q := HoldersQuery{Superblocks: []Number{v.number, other.number}}
			want := map[int]How{
				holder(t, 0, "open="+v.file):                   HowFile,
				holder(t, 0, "open="+filepath.Dir(v.file)):     HowFile,
				holder(t, 0, "cwd="+filepath.Dir(v.file)):      HowWorkingDirectory,
				holder(t, 0, "cwd="+v.path):                    HowWorkingDirectory,
				holder(t, 0, "root="+v.path):                   HowRoot,
				holder(t, 0, "root="+v.path, "open=/dir/file"): HowRoot | HowFile,
				holder(t, 0, "open="+v.file, "cwd="+v.path):    HowFile | HowWorkingDirectory,
				holder(t, 0, "open="+other.file):               0,
				holder(t, 0, "open=/dev/null"):                 0,
			}
			for name, follow := range bothWays {
				a := whoHolds(t, follow, q)
				for pid, how := range want {
					if got := howBy(a.Superblocks[v.number], pid); got != how {
						t.Errorf("%s: %b, want %b", name, got, how)
					}
				}
				if n := len(a.Superblocks[v.number].Processes); n != len(want)-2 {
					t.Errorf("%s: %d processes: %+v", name, n, a.Superblocks[v.number].Processes)
				}
				if n := len(a.Superblocks[other.number].Processes); n != 1 {
					t.Errorf("%s: %d processes hold the other one", name, n)
				}
			}
		})
	}
}

func TestHoldersAreNamed(t *testing.T) {
	v := newVolume(t, "tmpfs")
	pid := holder(t, 0, "open="+v.file)
	cgroup, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
	must(t, err)
	held := whoHolds(t, false, HoldersQuery{Superblocks: []Number{v.number}}).Superblocks[v.number]
	if len(held.Processes) != 1 || held.Processes[0].Cgroup != string(cgroup) || held.Processes[0].Command == "" {
		t.Errorf("%+v", held.Processes)
	}
}

// A process that came before the upper one of two stacked mounts is still on
// the lower one; text alone cannot tell.
func TestHoldersOfStackedMounts(t *testing.T) {
	v := newVolume(t, "tmpfs")
	lower := holder(t, 0, "cwd="+v.path)
	must(t, unix.Mount("tmpfs", v.path, "tmpfs", 0, ""))
	t.Cleanup(func() { _ = unix.Unmount(v.path, unix.MNT_DETACH) })
	above := numberOf(t, v.path)
	upper := holder(t, 0, "cwd="+v.path)
	q := HoldersQuery{Superblocks: []Number{v.number, above}}
	a := whoHolds(t, true, q)
	if howBy(a.Superblocks[v.number], lower) != HowWorkingDirectory || howBy(a.Superblocks[above], upper) != HowWorkingDirectory ||
		howBy(a.Superblocks[v.number], upper) != 0 || howBy(a.Superblocks[above], lower) != 0 {
		t.Errorf("through links: %+v", a.Superblocks)
	}
	a = whoHolds(t, false, q)
	for _, n := range q.Superblocks {
		if howBy(a.Superblocks[n], lower) == 0 || howBy(a.Superblocks[n], upper) == 0 {
			t.Errorf("by procfs: %+v", a.Superblocks)
		}
	}
}

// A filesystem that stopped itself may refuse every question.
func TestHoldersOfAShutDownVolume(t *testing.T) {
	for _, fs := range []string{"ext4", "xfs"} {
		t.Run(fs, func(t *testing.T) {
			v := newVolume(t, fs)
			open, cwd := holder(t, 0, "open="+v.file), holder(t, 0, "cwd="+filepath.Dir(v.file))
			root, err := os.Open(v.path)
			must(t, err)
			defer root.Close()
			const shutdown = 0x8004587d // XFS_IOC_GOINGDOWN, EXT4_IOC_SHUTDOWN
			how := uint32(2)            // without flushing the log
			must(t, ioctl(int(root.Fd()), shutdown, unsafe.Pointer(&how)))
			for name, follow := range bothWays {
				held := whoHolds(t, follow, HoldersQuery{Superblocks: []Number{v.number}}).Superblocks[v.number]
				if howBy(held, open) != HowFile || howBy(held, cwd) != HowWorkingDirectory {
					t.Errorf("%s: %+v", name, held)
				}
			}
		})
	}
}
