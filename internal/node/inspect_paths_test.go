package node

import (
	"errors"
	"testing"

	"github.com/csi-addons/node-healer/pkg/facts"
)

// Where no worker comes in time, what was read last of kubelet's files stands in;
// a path that has to be looked at has no such thing.
func TestLastKnown(t *testing.T) {
	n := Node{files: newCache[string, *facts.VolData]()}
	n.volData("/f", volData("a"))
	crowded := errors.New("no worker")
	s, err := n.lastKnown([]PathQuery{
		{Path: "/m", VolData: "/f", Mounted: true}, {Path: "/n", VolData: "/other", Mounted: true}, {Path: "/o", Mounted: true},
	}, crowded)
	if err != nil || len(s.Paths) != 3 || s.Paths["/m"].VolData == nil || s.Paths["/m"].VolData.VolumeHandle != "a" || s.Paths["/n"].VolData != nil {
		t.Errorf("%+v, %v", s, err)
	}
	for p, l := range s.Paths {
		if !l.Inspected {
			t.Errorf("%s: %+v", p, l)
		}
	}
	if _, err := n.lastKnown([]PathQuery{{Path: "/m", Mounted: true}, {Path: "/p"}}, crowded); !errors.Is(err, crowded) {
		t.Errorf("got %v", err)
	}
}
