package harness

import (
	"slices"
	"strconv"
	"testing"

	"github.com/csi-addons/node-healer/pkg/host"
)

// Layers returns the mounts that stand on a path, in no order, without touching
// any of them.
func Layers(t testing.TB, path string) []host.Mount {
	t.Helper()
	return layersOf(t, "self", path)
}

// LayersAt is Layers in another mount namespace.
func (ns Namespace) LayersAt(path string) []host.Mount {
	ns.t.Helper()
	return layersOf(ns.t, strconv.Itoa(ns.pid), path)
}

func layersOf(t testing.TB, process, path string) []host.Mount {
	t.Helper()
	return slices.DeleteFunc(Mounts(t, process), func(m host.Mount) bool { return m.Path != path })
}

// newLayer returns the mount that came to a path since a look at it.
func newLayer(t testing.TB, path string, before []host.Mount) host.Mount {
	t.Helper()
	for _, m := range Layers(t, path) {
		known := func(b host.Mount) bool { return b.OldID == m.OldID }
		if !slices.ContainsFunc(before, known) {
			return m
		}
	}
	t.Fatalf("nothing new is mounted at %s", path)
	return host.Mount{}
}

// Do runs a program in the namespace.
func (ns Namespace) Do(name string, args ...string) {
	ns.t.Helper()
	Run(ns.t, "nsenter", append([]string{"--mount=/proc/" + strconv.Itoa(ns.pid) + "/ns/mnt", name}, args...)...)
}
