package node

import (
	"context"
	"encoding/json"
	"errors"
	"slices"

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
		query, known := n.pathQueries(paths)
		var a ops.InspectAnswer
		ask := func() (err error) {
			a, err = n.ask(ctx, s, routine, query)
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
		n.addPaths(in.Paths, query.Paths, known, a)
	}
	return in, nil
}

// lastKnown stands in for the inspection of mount points when no worker was free in
// time: when many volumes hang at once, each of them is reported.
func (n *Node) lastKnown(asked []PathQuery, err error) (Inspection, error) {
	_, known := n.pathQueries(asked)
	in := Inspection{Paths: make(map[string]facts.PathInfo, len(asked))}
	for i, p := range asked {
		if !p.Mounted {
			return Inspection{}, err
		}
		in.Paths[p.Path] = facts.PathInfo{Inspected: true, VolData: known[i].data}
	}
	return in, nil
}

// pathQueries returns a worker's query for the paths, and what is cached of kubelet's
// files for them.
func (n *Node) pathQueries(asked []PathQuery) (ops.InspectQuery, []volDataFile) {
	query := ops.InspectQuery{Paths: slices.Clone(asked)}
	known := make([]volDataFile, len(asked))
	for i, p := range asked {
		if p.VolData != "" {
			known[i], _ = n.files.get(p.VolData)
			query.Paths[i].Known = known[i].stamp
		}
	}
	return query, known
}

// errNoVolData is what ails a torn file.
var errNoVolData = errors.New("no valid JSON")

// addPaths adds what a worker answered about paths.
func (n *Node) addPaths(infos map[string]facts.PathInfo, asked []PathQuery, known []volDataFile, a ops.InspectAnswer) {
	for i, p := range asked {
		got := a.Paths[i]
		info := facts.PathInfo{Inspected: true, PathFacts: got.PathFacts, Kind: got.Kind}
		if p.VolData != "" {
			info.VolData = n.volData(p.VolData, known[i], got.VolData, got.Stamp)
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

// volDataFile is a vol_data.json as it was read.
type volDataFile struct {
	stamp ops.FileStamp
	data  *facts.VolData
}

// volData returns the content of a file: of raw, or if that is nil as known before. It is nil
// for a torn file, which is evidence of nothing.
func (n *Node) volData(file string, before volDataFile, raw []byte, stamp ops.FileStamp) *facts.VolData {
	if raw == nil && stamp == before.stamp {
		return before.data
	}
	now := volDataFile{stamp: stamp}
	var d facts.VolData
	if json.Unmarshal(raw, &d) == nil {
		now.data = &d
	}
	if now.data == nil || stamp == (ops.FileStamp{}) {
		n.files.remove(file)
	} else {
		n.files.add(file, now)
	}
	return now.data
}
