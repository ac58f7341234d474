package node

import (
	"context"
	"encoding/json"
	"errors"

	"github.com/csi-addons/node-healer/internal/ops"
	"github.com/csi-addons/node-healer/pkg/facts"
)

// PathQuery asks about one path.
type PathQuery = ops.PathQuery

// inspectPaths examines paths only, with a worker for each filesystem that the walks
// end on: one that hangs delays no path on another.
func (n *Node) inspectPaths(ctx context.Context, asked []PathQuery, routine bool) (Inspection, error) {
	table, err := n.Topology()
	if err != nil {
		return Inspection{}, err
	}
	// All volumes have files on the disk that kubelet's directory lies on.
	disk := storageUnder(table, n.kubelet.Root)
	byStorage := map[storage][]PathQuery{}
	for _, p := range asked {
		file := p.Path
		if p.Mounted {
			file = p.VolData // all that is read
		}
		s := storageUnder(table, file)
		byStorage[s] = append(byStorage[s], p)
	}
	in := Inspection{Paths: make(map[string]facts.PathInfo, len(asked))}
	for s, paths := range byStorage {
		var a ops.InspectAnswer
		ask := func() (err error) {
			a, err = n.ask(ctx, s, routine, ops.InspectQuery{Paths: paths})
			return err
		}
		if s == disk {
			s.root = "paths" // a probe of a volume on the same disk does not wait for it
			err = n.probes.unlessStuck(s, ask)
		} else {
			err = n.probes.serialize(ctx, s, ask)
		}
		if err != nil {
			return Inspection{}, err
		}
		n.addPaths(in.Paths, paths, a)
	}
	return in, nil
}

// lastKnown stands in for the inspection of mount points when no worker was free in
// time: when many volumes hang at once, each of them is reported.
func (n *Node) lastKnown(asked []PathQuery, err error) (Inspection, error) {
	in := Inspection{Paths: make(map[string]facts.PathInfo, len(asked))}
	for _, p := range asked {
		if !p.Mounted {
			return Inspection{}, err
		}
		known, _ := n.files.get(p.VolData)
		in.Paths[p.Path] = facts.PathInfo{Inspected: true, VolData: known}
	}
	return in, nil
}

// errNoVolData is what ails a torn file.
var errNoVolData = errors.New("no valid JSON")

// addPaths adds what a worker answered about paths.
func (n *Node) addPaths(infos map[string]facts.PathInfo, asked []PathQuery, a ops.InspectAnswer) {
	for i, p := range asked {
		got := a.Paths[i]
		info := facts.PathInfo{Inspected: true, PathFacts: got.PathFacts, Kind: got.Kind}
		if p.VolData != "" {
			info.VolData = n.volData(p.VolData, got.VolData)
			switch {
			case got.VolDataErrno != 0:
				info.VolDataErr = got.VolDataErrno
			case info.VolData == nil && got.VolData != nil:
				info.VolDataErr = errNoVolData
			}
		}
		infos[p.Path] = info
	}
}

// volData returns the content of a file; nil for a torn one, which is evidence of nothing.
func (n *Node) volData(file string, raw []byte) *facts.VolData {
	d := new(facts.VolData)
	if json.Unmarshal(raw, d) != nil {
		n.files.remove(file)
		return nil
	}
	n.files.add(file, d)
	return d
}
