package engine

import (
	"testing"

	"github.com/csi-addons/node-healer/pkg/facts"
)

// Numbers of peer groups are given out again: they mean something only while both
// mounts are there.
func TestSharingOf(t *testing.T) {
	onHost := []facts.Mount{{Propagation: facts.Propagation{Shared: 4}}, {Propagation: facts.Propagation{Shared: 5, Master: 9}}, {}}
	for name, tc := range map[string]struct {
		p      facts.Propagation
		onHost []facts.Mount
		want   facts.Sharing
	}{
		"private":                      {facts.Propagation{}, onHost, facts.SharingNone},
		"private, nothing on the host": {facts.Propagation{}, nil, facts.SharingNone},
		"slave":                        {facts.Propagation{Master: 4}, onHost, facts.SharingSlave},
		"slave of another of the host": {facts.Propagation{Master: 5}, onHost, facts.SharingSlave},
		"slave, and shared":            {facts.Propagation{Master: 4, Shared: 7}, onHost, facts.SharingUnknown},
		"peer":                         {facts.Propagation{Shared: 4}, onHost, facts.SharingPeer},
		"shared with others":           {facts.Propagation{Shared: 7}, onHost, facts.SharingUnknown},
		"slave of somebody":            {facts.Propagation{Master: 9}, onHost, facts.SharingUnknown},
		"slave, nothing on the host":   {facts.Propagation{Master: 4}, nil, facts.SharingUnknown},
		"shared, nothing on the host":  {facts.Propagation{Shared: 4}, nil, facts.SharingUnknown},
		"the host's is private":        {facts.Propagation{Shared: 4}, []facts.Mount{{}}, facts.SharingUnknown},
	} {
		if got := sharingOf(facts.Mount{Propagation: tc.p}, tc.onHost); got != tc.want {
			t.Errorf("%s: %s", name, got)
		}
	}
}
