package workerops

import (
	"errors"
	"os"
	"slices"
	"testing"

	"golang.org/x/sys/unix"
)

func TestPublished(t *testing.T) {
	pods := realDir(t)
	if got, err := published(PublishedQuery{Pods: pods + "/none", Max: 9}); err != nil || got != nil {
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
	got, err := published(PublishedQuery{Pods: pods, Max: names})
	slices.SortFunc(got, func(a, b PublishedVolume) int { return len(a.PV) - len(b.PV) })
	if want := []PublishedVolume{{PodUID: "uid-a", PV: "pv1"}, {PodUID: "uid-a", PV: "pv 2"}}; err != nil || !slices.Equal(got, want) {
		t.Errorf("got %v, %v", got, err)
	}
	for _, limit := range []int{0, 6, names - 1} {
		if got, err := published(PublishedQuery{Pods: pods, Max: limit}); !errors.Is(err, unix.E2BIG) {
			t.Errorf("at most %d names: %v, %v", limit, got, err)
		}
	}
	if got, err := published(PublishedQuery{Pods: pods + "/link", Max: names}); !errors.Is(err, unix.ELOOP) {
		t.Errorf("through a link: %v, %v", got, err)
	}
}

func TestPublishedDevices(t *testing.T) {
	root := realDir(t)
	for _, dir := range []string{"pods", "publish/pv-raw"} {
		must(t, os.MkdirAll(root+"/"+dir, 0o700))
	}
	must(t, os.WriteFile(root+"/publish/pv-raw/uid-a", nil, 0o600))
	got, err := published(PublishedQuery{Pods: root + "/pods", Devices: root + "/publish", Max: 9})
	if want := []PublishedVolume{{PodUID: "uid-a", PV: "pv-raw", Block: true}}; err != nil || !slices.Equal(got, want) {
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
	if got, err := published(PublishedQuery{Pods: pods, Max: 9}); err != nil || got != nil {
		t.Errorf("got %v, %v", got, err)
	}
}
