package ops

import (
	"errors"
	"os"
	"runtime"
	"slices"
	"testing"

	"golang.org/x/sys/unix"
)

const volumesIn = "/" + AnyName + "/volumes/kubernetes.io~csi/" + AnyName + "/mount"

// publishedIn asks for the volumes in kubelet's directory for pods.
func publishedIn(pods string, limit int) (PublishedAnswer, error) {
	return published(PublishedQuery{Max: limit, Patterns: []string{pods + volumesIn}})
}

// publishedUnder asks for all volumes in directories below one.
func publishedUnder(root string) (PublishedAnswer, error) {
	return published(PublishedQuery{Max: 99, Patterns: []string{root + "/pods" + volumesIn, root + "/publish/" + AnyName + "/" + AnyName}})
}

func TestPublished(t *testing.T) {
	pods := realDir(t)
	if got, err := publishedIn(pods+"/none", 9); err != nil || got.Paths != nil {
		t.Errorf("no pods yet: %v, %v", got, err)
	}
	for _, dir := range []string{
		"uid-a/volumes/kubernetes.io~csi/pv1/mount", "uid-a/volumes/kubernetes.io~csi/pv 2", "uid-b/volumes/kubernetes.io~empty-dir/x",
		"uid-c", "uid-d/volumes/kubernetes.io~csi",
	} {
		must(t, os.MkdirAll(pods+"/"+dir, 0o700))
	}
	must(t, os.WriteFile(pods+"/file", nil, 0o600))
	must(t, os.Symlink("uid-a", pods+"/link"))
	must(t, os.Mkdir(pods+"/uid-e", 0o700))
	must(t, os.Symlink(pods+"/uid-a/volumes", pods+"/uid-e/volumes"))
	const names = 9 // 7 of pods, 2 of volumes
	got, err := publishedIn(pods, names)
	slices.Sort(got.Paths)
	at := pods + "/uid-a/volumes/kubernetes.io~csi/"
	if want := []string{at + "pv 2/mount", at + "pv1/mount"}; err != nil || got.Unread != nil || !slices.Equal(got.Paths, want) {
		t.Errorf("got %v, %v", got, err)
	}
	for _, limit := range []int{0, 6, names - 1} {
		if got, err := publishedIn(pods, limit); !errors.Is(err, unix.E2BIG) {
			t.Errorf("at most %d names: %v, %v", limit, got, err)
		}
	}
	if got, err := publishedIn(pods+"/link", names); !errors.Is(err, unix.ELOOP) {
		t.Errorf("through a link: %v, %v", got, err)
	}
}

func TestPublishedDevices(t *testing.T) {
	root := realDir(t)
	for _, dir := range []string{"pods", "publish/pv-raw"} {
		must(t, os.MkdirAll(root+"/"+dir, 0o700))
	}
	must(t, os.WriteFile(root+"/publish/pv-raw/uid-a", nil, 0o600))
	got, err := publishedUnder(root)
	if want := []string{root + "/publish/pv-raw/uid-a"}; err != nil || got.Unread != nil || !slices.Equal(got.Paths, want) {
		t.Errorf("got %v, %v", got, err)
	}
}

// What is mounted over kubelet's directories is not entered: it may not answer.
func TestPublishedEntersNoMount(t *testing.T) {
	pods := realDir(t)
	at := pods + "/uid-a/volumes/kubernetes.io~csi"
	must(t, os.MkdirAll(at, 0o700))
	if err := unix.Mount("test", at, "tmpfs", 0, ""); err != nil {
		if os.Getenv("CI") != "" {
			t.Fatal(err)
		}
		t.Skip(err)
	}
	t.Cleanup(func() { must(t, unix.Unmount(at, 0)) })
	must(t, os.Mkdir(at+"/pv1", 0o700))
	if got, err := publishedIn(pods, 9); err != nil || got.Paths != nil || got.Unread != nil {
		t.Errorf("got %v, %v", got, err)
	}
}

// heedingModes runs a function without root's right to read what no mode allows.
func heedingModes(t *testing.T, do func()) {
	t.Helper()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		runtime.LockOSThread() // and the thread ends with it
		header, data := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}, [2]unix.CapUserData{}
		if err := unix.Capget(&header, &data[0]); err != nil {
			t.Error(err)
		}
		data[0].Effective &^= 1<<unix.CAP_DAC_OVERRIDE | 1<<unix.CAP_DAC_READ_SEARCH
		if err := unix.Capset(&header, &data[0]); err != nil {
			t.Error(err)
		}
		do()
	}()
	<-ended
}

// A directory that cannot be read hides no other.
func TestPublishedLeavesOutWhatItCannotRead(t *testing.T) {
	root := realDir(t)
	pods, devices := root+"/pods", root+"/publish"
	for _, dir := range []string{
		"pods/uid-a/volumes/kubernetes.io~csi/pv1",
		"pods/uid-b/volumes/kubernetes.io~csi/pv2",
		"pods/uid-c/volumes/kubernetes.io~csi/pv3",
		"publish/pv4/uid-a",
		"publish/pv5/uid-a",
	} {
		must(t, os.MkdirAll(root+"/"+dir, 0o700))
	}
	closed := []string{pods + "/uid-b/volumes/kubernetes.io~csi", devices + "/pv4"}
	for _, dir := range closed {
		must(t, os.Chmod(dir, 0))
		t.Cleanup(func() { must(t, os.Chmod(dir, 0o700)) }) //nolint:gosec // a directory
	}
	heedingModes(t, func() {
		got, err := publishedUnder(root)
		slices.Sort(got.Paths)
		want := []string{pods + "/uid-a/volumes/kubernetes.io~csi/pv1/mount", pods + "/uid-c/volumes/kubernetes.io~csi/pv3/mount", devices + "/pv5/uid-a"}
		unread := []UnreadPath{{closed[0], "permission denied"}, {closed[1], "permission denied"}}
		if err != nil || !slices.Equal(got.Paths, want) || !slices.Equal(got.Unread, unread) {
			t.Errorf("got %v, %v", got, err)
		}
	})
}
