package ops

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/csi-addons/node-healer/pkg/facts"
)

// realDir is a new directory named without symbolic links.
func realDir(t *testing.T) string {
	t.Helper()
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestInspectPath(t *testing.T) {
	dir := realDir(t)
	must(t, os.MkdirAll(dir+"/a b/c", 0o700))
	must(t, os.WriteFile(dir+"/file", nil, 0o600))
	must(t, os.Symlink("a b", dir+"/link"))
	must(t, os.Symlink("/nonexistent", dir+"/dangling"))
	must(t, unix.Mkfifo(dir+"/fifo", 0o600))
	long := strings.Repeat("x", 256)
	for name, tc := range map[string]struct {
		q    PathQuery
		want facts.PathFacts
		typ  facts.PathKind
	}{
		"a directory":       {q: PathQuery{Path: dir + "/a b/c"}, typ: facts.KindDirectory},
		"a file":            {q: PathQuery{Path: dir + "/file"}, typ: facts.KindFile},
		"a fifo, not read":  {q: PathQuery{Path: dir + "/fifo"}, typ: facts.KindOther},
		"a link":            {q: PathQuery{Path: dir + "/link"}, want: facts.PathFacts{Link: "a b"}, typ: facts.KindSymlink},
		"a dangling link":   {q: PathQuery{Path: dir + "/dangling"}, want: facts.PathFacts{Link: "/nonexistent"}, typ: facts.KindSymlink},
		"nothing":           {q: PathQuery{Path: dir + "/none"}, want: facts.PathFacts{Errno: unix.ENOENT}},
		"nothing above":     {q: PathQuery{Path: dir + "/none/x"}, want: facts.PathFacts{ParentErrno: unix.ENOENT}},
		"a file above":      {q: PathQuery{Path: dir + "/file/x"}, want: facts.PathFacts{ParentErrno: unix.ENOTDIR}},
		"a link above":      {q: PathQuery{Path: dir + "/link/c"}, want: facts.PathFacts{ParentErrno: unix.ELOOP}},
		"a link far above":  {q: PathQuery{Path: dir + "/link/c/d/e"}, want: facts.PathFacts{ParentErrno: unix.ELOOP}},
		"a magic link":      {q: PathQuery{Path: "/proc/self/cwd/x"}, want: facts.PathFacts{ParentErrno: unix.ELOOP}},
		"too long":          {q: PathQuery{Path: dir + "/" + long}, want: facts.PathFacts{Errno: unix.ENAMETOOLONG}},
		"too long above":    {q: PathQuery{Path: dir + "/" + long + "/x"}, want: facts.PathFacts{ParentErrno: unix.ENAMETOOLONG}},
		"above":             {q: PathQuery{Path: dir + "/file", ParentOnly: true}},
		"above nothing":     {q: PathQuery{Path: dir + "/none", ParentOnly: true}},
		"above, no way":     {q: PathQuery{Path: dir + "/none/x", ParentOnly: true}, want: facts.PathFacts{ParentErrno: unix.ENOENT}},
		"relative":          {q: PathQuery{Path: "file"}, want: facts.PathFacts{ParentErrno: unix.EINVAL}},
		"a mount point":     {q: PathQuery{Path: dir + "/none", Mounted: true}},
		"no last component": {q: PathQuery{Path: dir + "/"}, want: facts.PathFacts{ParentErrno: unix.EINVAL}},
	} {
		got := inspectPath(tc.q)
		if got.Kind != tc.typ {
			t.Errorf("%s: type %s", name, got.Kind)
		}
		if got.PathFacts != tc.want || got.VolData != nil {
			t.Errorf("%s: %+v, want %+v", name, got, tc.want)
		}
	}
}

// What is mounted is not walked to: the answer is about the directory itself.
func TestInspectBeneathAMount(t *testing.T) {
	needsRoot(t)
	dir := realDir(t)
	at := dir + "/file"
	must(t, os.WriteFile(at, nil, 0o600))
	must(t, unix.Mount("/dev/null", at, "", unix.MS_BIND, ""))
	t.Cleanup(func() { must(t, unix.Unmount(at, 0)) })
	if got := inspectPath(PathQuery{Path: at}); got.Kind != facts.KindFile {
		t.Errorf("%+v", got)
	}

	t.Run("files are looked for in the directory beneath", func(t *testing.T) {
		empty, file := dir+"/empty", dir+"/content"
		must(t, os.Mkdir(empty, 0o700))
		must(t, os.WriteFile(file, []byte("x"), 0o600))
		must(t, unix.Mount("over", empty, "tmpfs", 0, ""))
		t.Cleanup(func() { must(t, unix.Unmount(empty, 0)) })
		must(t, os.WriteFile(empty+"/file", nil, 0o600))
		for path, want := range map[string]bool{empty: false, at: false, file: true, dir: true} {
			if got := inspectPath(PathQuery{Path: path, Bare: true}); got.NotEmpty != want {
				t.Errorf("%s: %+v", path, got)
			}
			if got := inspectPath(PathQuery{Path: path}); got.NotEmpty {
				t.Errorf("%s, not asked for: %+v", path, got)
			}
		}
	})
	t.Run("an unbindable mount has no clones", func(t *testing.T) {
		must(t, unix.Mount("unbindable", dir, "tmpfs", 0, ""))
		t.Cleanup(func() { must(t, unix.Unmount(dir, 0)) })
		must(t, unix.Mount("", dir, "", unix.MS_UNBINDABLE, ""))
		must(t, os.WriteFile(at, nil, 0o600))
		if got := inspectPath(PathQuery{Path: at}); got.Kind != facts.KindFile || got.Errno|got.ParentErrno != 0 {
			t.Errorf("%+v", got)
		}
	})
}

func TestDeviceNumbers(t *testing.T) {
	needsRoot(t)
	node := filepath.Join(realDir(t), "node")
	want := facts.Dev{Major: 7, Minor: 5}
	must(t, unix.Mknod(node, unix.S_IFBLK|0o600, int(unix.Mkdev(want.Major, want.Minor))))
	if a := inspectPath(PathQuery{Path: node}); a.Rdev != want || a.Kind != facts.KindBlock {
		t.Errorf("a block device: %+v", a)
	}
	if a := inspectPath(PathQuery{Path: "/dev/null"}); !a.Rdev.Zero() || a.Kind != facts.KindOther {
		t.Errorf("a character device: %+v", a)
	}
}

func TestVolData(t *testing.T) {
	dir := realDir(t)
	most := bytes.Repeat([]byte("x"), volDataLimit)
	must(t, os.WriteFile(dir+"/good", []byte("{}"), 0o600))
	must(t, os.WriteFile(dir+"/most", most, 0o600))
	must(t, os.WriteFile(dir+"/more", append(most, 'x'), 0o600))
	must(t, os.Symlink("good", dir+"/link"))
	must(t, os.Mkdir(dir+"/dir", 0o700))
	must(t, unix.Mkfifo(dir+"/fifo", 0o600))
	must(t, os.Symlink(".", dir+"/loop"))
	for name, want := range map[string][]byte{
		"good": []byte("{}"), "most": most, "more": nil, "link": nil, "dir": nil, "fifo": nil, "none": nil, "loop/good": nil, "none/x": nil,
	} {
		// The mount point itself need not exist.
		a := inspectPath(PathQuery{Path: dir + "/mount", VolData: dir + "/" + name})
		if !bytes.Equal(a.VolData, want) || (a.VolData == nil) != (want == nil) {
			t.Errorf("%s: %d bytes, want %d", name, len(a.VolData), len(want))
		}
	}
}

func TestInspectKeepsTheOrder(t *testing.T) {
	dir := realDir(t)
	all, err := inspect([]InspectQuery{{Paths: []PathQuery{{Path: dir + "/none"}, {Path: dir}, {Path: "x"}}}})
	must(t, err)
	if a := all[0]; len(a.Paths) != 3 || a.Paths[0].Errno != unix.ENOENT || a.Paths[1].Kind != facts.KindDirectory || a.Paths[2].ParentErrno != unix.EINVAL {
		t.Errorf("%+v", all)
	}
}

func TestInspectLeavesNoDescriptor(t *testing.T) {
	dir := realDir(t)
	must(t, os.WriteFile(dir+"/good", []byte("{}"), 0o600))
	count := func() int {
		fds, err := os.ReadDir("/proc/self/fd")
		must(t, err)
		return len(fds)
	}
	before := count()
	for _, p := range []string{dir, dir + "/none", dir + "/none/x", dir + "/good", "x"} {
		inspectPath(PathQuery{Path: p, VolData: p})
		probe(ProbeQuery{Path: p})
	}
	if after := count(); after != before {
		t.Errorf("%d descriptors, before %d", after, before)
	}
}

func TestErrnoOf(t *testing.T) {
	for want, err := range map[syscall.Errno]error{
		0: nil, unix.ESTALE: &os.PathError{Err: unix.ESTALE}, unix.EIO: os.ErrInvalid,
	} {
		if got := errnoOf(err); got != want {
			t.Errorf("%v: %v", err, got)
		}
	}
}

// A vol_data.json that cannot be read is told from one that is not there.
func TestUnreadableVolData(t *testing.T) {
	dir := realDir(t)
	must(t, os.WriteFile(dir+"/closed", []byte("{}"), 0))
	must(t, os.WriteFile(dir+"/empty", nil, 0o600))
	must(t, os.Mkdir(dir+"/directory", 0o700))
	heedingModes(t, func() {
		for name, want := range map[string]syscall.Errno{
			"none": 0, "empty/none": 0, "closed": unix.EACCES, "empty": unix.ENODATA, "directory": unix.EINVAL,
		} {
			a := inspectPath(PathQuery{Mounted: true, VolData: dir + "/" + name})
			if a.VolDataErrno != want || len(a.VolData) > 0 {
				t.Errorf("%s: %+v", name, a)
			}
		}
	})
}
