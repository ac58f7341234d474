package node

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/csi-addons/node-healer/pkg/facts"
)

// laidOut makes a path of kubelet's, with its file, and mounts something there
// if that is wanted.
func laidOut(t *testing.T, n *Node, at, driver, handle string, mounted bool) {
	t.Helper()
	file := n.Kubelet().Layout(at).VolData
	done(t, os.MkdirAll(at, 0o700))
	done(t, os.MkdirAll(filepath.Dir(file), 0o700))
	done(t, os.WriteFile(file, fmt.Appendf(nil, `{"driverName":%q,"volumeHandle":%q}`, driver, handle), 0o600))
	if mounted {
		done(t, unix.Mount("test", at, "tmpfs", 0, ""))
		t.Cleanup(func() { done(t, syscall.Unmount(at, 0)) })
	}
}

func TestVolumes(t *testing.T) {
	realKernel(t)
	n, root := newNode(t)
	pod := func(uid, pv string) string {
		return root + "/pods/" + uid + "/volumes/kubernetes.io~csi/" + pv + "/mount"
	}
	publish := root + "/plugins/kubernetes.io/csi/volumeDevices/publish/"
	staging := n.Kubelet().Staging("d", "v")
	laidOut(t, n, staging, "d", "v", true)
	done(t, unix.Mount("test", staging, "tmpfs", 0, "")) // stacked
	t.Cleanup(func() { done(t, syscall.Unmount(staging, 0)) })
	laidOut(t, n, pod("1", "pv"), "d", "v", true)
	laidOut(t, n, pod("2", "pv"), "d", "v", false)
	laidOut(t, n, pod("1", "pv-other"), "other", "o", true)
	laidOut(t, n, publish+"pv-raw/1", "d", "raw", true)
	laidOut(t, n, publish+"pv-lost/1", "d", "raw-lost", false)
	laidOut(t, n, n.Kubelet().Staging("d", "on its way out"), "d", "on its way out", false)
	laidOut(t, n, pod("1", "pv-starting"), "d", "starting", false)
	done(t, os.Remove(pod("1", "pv-starting"))) // which the driver makes
	laidOut(t, n, pod("1", "scratch"), "d", "inline", false)
	done(t, os.WriteFile(filepath.Dir(pod("1", "scratch"))+"/vol_data.json", []byte(`{"driverName":"d","volumeHandle":"inline","volumeLifecycleMode":"Ephemeral"}`), 0o600))
	laidOut(t, n, pod("1", "pv-torn"), "d", "torn", true)
	done(t, os.WriteFile(filepath.Dir(pod("1", "pv-torn"))+"/vol_data.json", []byte(`{"driver`), 0o600))
	want := []facts.VolumePath{
		{VolData: facts.VolData{DriverName: "d", VolumeHandle: "v"}, Path: staging, Staging: true, Mounted: true},
		{VolData: facts.VolData{DriverName: "d", VolumeHandle: "v"}, Path: pod("1", "pv"), Mounted: true, PV: "pv", PodUID: "1"},
		{VolData: facts.VolData{DriverName: "d", VolumeHandle: "v"}, Path: pod("2", "pv"), PV: "pv", PodUID: "2"},
		{VolData: facts.VolData{DriverName: "other", VolumeHandle: "o"}, Path: pod("1", "pv-other"), Mounted: true, PV: "pv-other", PodUID: "1"},
		{VolData: facts.VolData{DriverName: "d", VolumeHandle: "raw"}, Path: publish + "pv-raw/1", Mounted: true, PV: "pv-raw", PodUID: "1"},
		{VolData: facts.VolData{DriverName: "d", VolumeHandle: "raw-lost"}, Path: publish + "pv-lost/1", PV: "pv-lost", PodUID: "1"},
	}
	want = append(want, facts.VolumePath{VolData: facts.VolData{DriverName: "d", VolumeHandle: "inline", Lifecycle: "Ephemeral"}, Path: pod("1", "scratch"), PodUID: "1"})
	laidOut(t, n, pod("1", "pv-directory"), "d", "directory", false)
	file := filepath.Dir(pod("1", "pv-directory")) + "/vol_data.json"
	done(t, os.Remove(file))
	done(t, os.Mkdir(file, 0o700))
	got, err := n.Volumes(context.Background())
	byPath := func(a, b facts.VolumePath) int { return strings.Compare(a.Path, b.Path) }
	slices.SortFunc(got, byPath)
	slices.SortFunc(want, byPath)
	if !slices.Equal(got, want) {
		t.Errorf("got %+v\nwant %+v", got, want)
	}
	var unlisted *facts.UnlistedError
	wantErr := "cannot read what kubelet has at " + pod("1", "pv-directory") + ": vol_data.json: invalid argument, and at 1 more"
	if !errors.As(err, &unlisted) || err.Error() != wantErr || !unlisted.Hides(pod("1", "pv-torn")) || unlisted.Hides(pod("1", "pv-starting")) {
		t.Errorf("got %v", err)
	}
	mounts, err := n.VolumeMounts()
	if want := 5 + 1; err != nil || len(mounts) != want { // one is stacked
		t.Errorf("got %+v, %v, want %d mounts", mounts, err, want)
	}
}

// What is read in several calls is found as well.
func TestManyVolumes(t *testing.T) {
	realKernel(t)
	n, root := newNode(t)
	for i := range maxAsked + 2 {
		laidOut(t, n, fmt.Sprintf("%s/pods/uid/volumes/kubernetes.io~csi/pv-%04d/mount", root, i), "d", fmt.Sprint("volume-", i), true)
	}
	if got, err := n.Volumes(context.Background()); err != nil || len(got) != maxAsked+2 {
		t.Errorf("got %d, %v", len(got), err)
	}
}

func TestChanges(t *testing.T) {
	realKernel(t)
	n, root := newNode(t)
	ctx, cancel := context.WithCancel(context.Background())
	changes, err := n.Changes(ctx)
	done(t, err)
	change := func() {
		done(t, unix.Mount("test", root, "tmpfs", 0, ""))
		done(t, unix.Unmount(root, 0))
	}
	for range 3 {
		change()
		change()
		<-changes
		for quiet := false; !quiet; { // one value may be of what came after it was first read
			select {
			case <-changes:
			case <-time.After(20 * time.Millisecond):
				quiet = true
			}
		}
	}
	change()
	cancel()
	for range changes { //nolint:revive // until it closes
	}
}
