package healer

import (
	"errors"
	"slices"
	"testing"

	"github.com/csi-addons/node-healer/pkg/host"
)

// heldBy names what a report says of holders; the world shows each superblock's
// number as the path of a mount.
func heldBy(r Report) []string {
	var held []string
	for _, h := range r.Holders {
		held = append(held, h.Mounts[0].Path)
	}
	return held
}

func TestWhoHoldsASickVolume(t *testing.T) {
	other := host.Dev{Minor: 77}
	for name, tc := range map[string]struct {
		change func(*bench)
		want   []string
	}{
		"healthy":            {func(*bench) {}, nil},
		"sick at two places": {func(b *bench) { b.fall(podA, IOError); b.fall(staging, IOError) }, []string{disk.String()}},
		"of two filesystems": {func(b *bench) {
			b.change(staging, func(m *host.Mount) { m.Dev = other })
			b.fall(podA, IOError)
			b.fall(staging, IOError)
		}, []string{other.String(), disk.String()}},
		"nothing is mounted":  {func(b *bench) { b.unmount(podA); b.fall(podA, NotMounted) }, nil},
		"at no known place":   {func(b *bench) { b.fall("/elsewhere", IOError) }, nil},
		"nobody can tell who": {func(b *bench) { b.fall(podA, IOError); b.heldErr = errors.New("no procfs") }, nil},
	} {
		b := newBench(t)
		tc.change(b)
		r := b.heal(volume)
		got := heldBy(r)
		slices.Sort(got)
		slices.Sort(tc.want)
		if !slices.Equal(got, tc.want) || (r.Verdict() == Healthy) != (name == "healthy") {
			t.Errorf("%s: %s, held %q, want %q", name, r.Verdict(), got, tc.want)
		}
	}
}

// The superblock of a device node is devtmpfs: the device is asked for instead.
func TestWhoHoldsASickDevice(t *testing.T) {
	b := newBlockBench(t)
	b.fall(blockPlace, IOError)
	r := b.heal(Volume{ID: volID, Path: blockPlace})
	if got := heldBy(r); !slices.Equal(got, []string{host.Dev{}.String()}) || !slices.Equal(b.held, []host.Holdable{{Device: disk}}) {
		t.Errorf("asked for %+v, got %q", b.held, got)
	}
}
