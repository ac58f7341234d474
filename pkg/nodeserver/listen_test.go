package nodeserver

import (
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

func TestEndpoints(t *testing.T) {
	base := "/" + strings.Repeat("s", maxSocketPathBytes-1)
	for endpoint, want := range map[string]string{
		"unix:///run/a.sock":   "/run/a.sock",
		"unix:/run/a.sock":     "/run/a.sock",
		"unix://" + base:       base,
		"unix://" + base + "x": "the path has 108 bytes, a unix socket's has at most 107",
		"/run/a.sock":          "must be unix:///path",
		"":                     "must be unix:///path",
		"tcp://127.0.0.1:1":    "must be unix:///path",
		"unix:":                "must be an absolute, clean path",
		"unix:///":             "must be an absolute, clean path",
		"unix:a.sock":          "must be an absolute, clean path",
		"unix://host/a.sock":   "must be an absolute, clean path",
		"unix:@abstract":       "must be an absolute, clean path",
		"unix:///run/../a":     "must be an absolute, clean path",
		"unix:///run/a/":       "must be an absolute, clean path",
		"unix:///run/a\x00b":   "must be an absolute, clean path",
	} {
		got, err := socketPath(endpoint)
		if err != nil {
			got = err.Error()
		}
		if !strings.Contains(got, want) || err == nil && got != want {
			t.Errorf("%q: got %q, want %q", endpoint, got, want)
		}
	}
}

func mode(t *testing.T, path string) fs.FileMode {
	t.Helper()
	info, err := os.Lstat(path)
	if err != nil {
		t.Fatal(err)
	}
	return info.Mode()
}

func TestListenModes(t *testing.T) {
	umask := syscall.Umask(0)
	defer syscall.Umask(umask)
	dir := filepath.Join(t.TempDir(), "a", "b")
	sock := filepath.Join(dir, "s.sock")
	l, err := Listen("unix://" + sock)
	if err != nil {
		t.Fatal(err)
	}
	if got := syscall.Umask(0); got != 0 {
		t.Errorf("umask is %04o afterwards", got)
	}
	if got := mode(t, dir); got != fs.ModeDir|0o700 {
		t.Errorf("directory: %v", got)
	}
	if got := mode(t, sock); got != fs.ModeSocket|0o600 {
		t.Errorf("socket: %v", got)
	}
	for range 2 {
		if err := l.Close(); err != nil && !strings.Contains(err.Error(), "closed") {
			t.Error(err)
		}
	}
	if _, err := os.Lstat(sock); !os.IsNotExist(err) {
		t.Errorf("the socket is still there: %v", err)
	}
}

// stale leaves a socket behind on which no process listens.
func stale(t *testing.T, path string) {
	t.Helper()
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	_ = l.Close()
}

var listenOnWhatIsThereExamples = map[string]struct {
	prepare func(t *testing.T, path string)
	want    string
}{
	"nothing":        {func(*testing.T, string) {}, ""},
	"a stale socket": {stale, ""},
	"a live socket": {func(t *testing.T, path string) {
		l, err := net.Listen("unix", path)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = l.Close() })
	}, "another server listens on it"},
	"a datagram socket": {func(t *testing.T, path string) {
		c, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
	}, "cannot tell whether it is in use"},
	"a file": {func(t *testing.T, path string) {
		if err := os.WriteFile(path, []byte("x"), 0o600); err != nil {
			t.Fatal(err)
		}
	}, "another kind of file is at the path, and is not replaced"},
	"a directory": {func(t *testing.T, path string) {
		if err := os.Mkdir(path, 0o700); err != nil {
			t.Fatal(err)
		}
	}, "another kind of file is at the path, and is not replaced"},
	"a link to a stale socket": {func(t *testing.T, path string) {
		stale(t, path+"2")
		if err := os.Symlink(path+"2", path); err != nil {
			t.Fatal(err)
		}
	}, "another kind of file is at the path, and is not replaced"},
	"a directory that the group may write": {func(t *testing.T, path string) { chmod(t, filepath.Dir(path), 0o770) }, "mode 0770 lets others write to it"},
	"a directory like /tmp":                {func(t *testing.T, path string) { chmod(t, filepath.Dir(path), 0o777|fs.ModeSticky) }, "mode 0777 lets others write to it"},
	"a directory that others may read":     {func(t *testing.T, path string) { chmod(t, filepath.Dir(path), 0o755) }, ""},
}

func TestListenOnWhatIsThere(t *testing.T) {
	for name, tc := range listenOnWhatIsThereExamples {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			chmod(t, dir, 0o700)
			sock := filepath.Join(dir, "s")
			tc.prepare(t, sock)
			before, _ := os.Lstat(sock)
			l, err := Listen("unix://" + sock)
			if tc.want == "" {
				if err != nil {
					t.Fatal(err)
				}
				defer func() { _ = l.Close() }()
				c, err := net.Dial("unix", sock)
				if err != nil {
					t.Fatal(err)
				}
				_ = c.Close()
				return
			}
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Fatalf("got %v, want %q", err, tc.want)
			}
			if before != nil {
				if after, err := os.Lstat(sock); err != nil || !os.SameFile(before, after) {
					t.Errorf("what was there is gone: %v", err)
				}
			}
		})
	}
}

func chmod(t *testing.T, path string, mode fs.FileMode) {
	t.Helper()
	if err := os.Chmod(path, mode); err != nil {
		t.Fatal(err)
	}
}

// A directory without other files is made private: kubelet makes a hostPath
// with 0755. One that holds anything else is left alone.
func TestSocketDirectoryIsMadePrivate(t *testing.T) {
	for name, tc := range map[string]struct {
		prepare func(t *testing.T, dir string)
		want    fs.FileMode
	}{
		"empty":                     {func(*testing.T, string) {}, 0o700},
		"with our stale socket":     {func(t *testing.T, dir string) { stale(t, dir+"/s") }, 0o700},
		"with another's socket":     {func(t *testing.T, dir string) { stale(t, dir+"/another") }, 0o755},
		"with a directory":          {func(t *testing.T, dir string) { mkdir(t, dir+"/d") }, 0o755},
		"with both of the previous": {func(t *testing.T, dir string) { stale(t, dir+"/s"); mkdir(t, dir+"/d") }, 0o755},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			tc.prepare(t, dir)
			chmod(t, dir, 0o755)
			l, err := Listen("unix://" + dir + "/s")
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = l.Close() }()
			if got := mode(t, dir).Perm(); got != tc.want {
				t.Errorf("the directory has %04o, want %04o", got, tc.want)
			}
		})
	}
}

func mkdir(t *testing.T, path string) {
	t.Helper()
	if err := os.Mkdir(path, 0o700); err != nil {
		t.Fatal(err)
	}
}

func TestForeignSocketDirectory(t *testing.T) {
	if os.Getuid() != 0 {
		if os.Getenv("CI") != "" {
			t.Fatal("needs root, and in CI a test that would skip fails")
		}
		t.Skip("needs root, to give a directory away")
	}
	dir := t.TempDir()
	if err := os.Chown(dir, 12345, -1); err != nil {
		t.Fatal(err)
	}
	if _, err := Listen("unix://" + dir + "/s"); err == nil || !strings.Contains(err.Error(), "must belong to uid 0") {
		t.Errorf("got %v", err)
	}
}
