package harness

import (
	"slices"
	"strconv"
	"testing"

	"github.com/csi-addons/node-healer/pkg/facts"
)

// Layers returns the mounts that stand on a path, in no order, without touching
// any of them.
func Layers(t testing.TB, path string) []facts.Mount {
	t.Helper()
	return layersOf(t, "self", path)
}

// LayersAt is Layers in another mount namespace.
func (ns Namespace) LayersAt(path string) []facts.Mount {
	ns.t.Helper()
	return layersOf(ns.t, strconv.Itoa(ns.pid), path)
}

func layersOf(t testing.TB, process, path string) []facts.Mount {
	t.Helper()
	return slices.DeleteFunc(Mounts(t, process), func(m facts.Mount) bool { return m.Path != path })
}

// newLayer returns the mount that came to a path since a look at it.
func newLayer(t testing.TB, path string, before []facts.Mount) facts.Mount {
	t.Helper()
	for _, m := range Layers(t, path) {
		known := func(b facts.Mount) bool { return b.OldID == m.OldID }
		if !slices.ContainsFunc(before, known) {
			return m
		}
	}
	t.Fatalf("nothing new is mounted at %s", path)
	return facts.Mount{}
}

// Do runs a program in the namespace.
func (ns Namespace) Do(name string, args ...string) {
	ns.t.Helper()
	Run(ns.t, "nsenter", append([]string{"--mount=/proc/" + strconv.Itoa(ns.pid) + "/ns/mnt", name}, args...)...)
}
