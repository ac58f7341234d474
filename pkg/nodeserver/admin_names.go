package nodeserver

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/csi-addons/node-healer/internal/printable"
	"github.com/csi-addons/node-healer/pkg/facts"
	"github.com/csi-addons/node-healer/pkg/healer"
)

// namedPath is a path with the names that the API has for its claim and pod.
type namedPath struct {
	facts.VolumePath

	claim, pod string
}

// namesTimeout bounds how long an answer waits for names that the API has to be asked for.
const namesTimeout = 2 * time.Second

// addNames asks for the names only if it is told to.
func (a admin) addNames(ctx context.Context, paths []facts.VolumePath, ask bool) []namedPath {
	ctx, cancel := context.WithTimeout(ctx, namesTimeout)
	defer cancel()
	all := make([]namedPath, 0, len(paths))
	for _, p := range paths {
		named := namedPath{VolumePath: p}
		if ask && a.server.cfg.Names != nil {
			named.claim, named.pod = a.server.cfg.Names(ctx, p)
		}
		all = append(all, named)
	}
	return all
}

// names are what a person may call the volume of a path, the surest first: tenants choose the
// names of their claims and pods, and those must not stand for another's ID.
func (p namedPath) names() []string {
	return []string{p.VolumeHandle, p.Path, p.PV, p.PodUID, p.claim, p.pod}
}

// named returns the paths of the volume that has a name. What several are called is an error.
func (a admin) named(ctx context.Context, driver, name string, paths []facts.VolumePath) ([]namedPath, error) {
	paths = slices.DeleteFunc(slices.Clone(paths), func(p facts.VolumePath) bool { return driver != "" && p.DriverName != driver })
	var all []namedPath
	for _, ask := range []bool{false, true} { // the API is asked only for what the node does not know
		all = a.addNames(ctx, paths, ask)
		for surest := range (namedPath{}).names() {
			volumes := volumesOf(slices.DeleteFunc(slices.Clone(all), func(p namedPath) bool { return p.names()[surest] != name }))
			switch len(volumes) {
			case 0:
			case 1:
				another := func(p facts.VolumePath) bool {
					return valid(p.DriverName) != volumes[0].GetDriver() || valid(p.VolumeHandle) != volumes[0].GetVolumeId()
				}
				return a.addNames(ctx, slices.DeleteFunc(paths, another), true), nil
			default:
				var ids []string
				for _, v := range volumes {
					ids = append(ids, quoted(v.GetVolumeId())+" of "+v.GetDriver())
				}
				return nil, healer.Invalid("volume_id", "%d volumes are called so: name one by its ID, with its driver (--driver): %s", len(ids), printable.Line(strings.Join(ids, ", "), logTextBytes))
			}
		}
	}
	unnamed := ""
	if a.server.cfg.Names != nil && slices.ContainsFunc(all, func(p namedPath) bool { return p.PodUID != "" && p.pod == "" }) {
		unnamed = "; the API has not said the names of all claims and pods"
	}
	return nil, healer.NotFound("no such volume on this node, by ID, path, PersistentVolume, claim or pod: healerctl list shows them%s", unnamed)
}
