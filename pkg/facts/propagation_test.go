package facts

import "testing"

// Numbers of peer groups are given out again: they mean something only while both
// mounts are there.
func TestSharingOf(t *testing.T) {
	onHost := []Mount{{Propagation: Propagation{Shared: 4}}, {Propagation: Propagation{Shared: 5, Master: 9}}, {}}
	for name, tc := range map[string]struct {
		p      Propagation
		onHost []Mount
		want   Sharing
	}{
		"private":                      {Propagation{}, onHost, SharingNone},
		"private, nothing on the host": {Propagation{}, nil, SharingNone},
		"unbindable":                   {Propagation{Unbindable: true}, onHost, SharingUnbindable},
		"slave":                        {Propagation{Master: 4}, onHost, SharingSlave},
		"slave of another of the host": {Propagation{Master: 5}, onHost, SharingSlave},
		"slave, and shared":            {Propagation{Master: 4, Shared: 7}, onHost, SharingSlaveOwn},
		"peer":                         {Propagation{Shared: 4}, onHost, SharingPeer},
		"shared with others":           {Propagation{Shared: 7}, onHost, SharingOwn},
		"slave of somebody":            {Propagation{Master: 9}, onHost, SharingUnknown},
		"slave, nothing on the host":   {Propagation{Master: 4}, nil, SharingUnknown},
		"shared, nothing on the host":  {Propagation{Shared: 4}, nil, SharingUnknown},
		"the host's is private":        {Propagation{Shared: 4}, []Mount{{}}, SharingOwn},
	} {
		if got := SharingOf(Mount{Propagation: tc.p}, tc.onHost); got != tc.want {
			t.Errorf("%s: %s", name, got)
		}
	}
	for s, want := range map[Sharing]bool{SharingSlave: true, SharingSlaveOwn: true, SharingPeer: true, SharingOwn: false, SharingNone: false, SharingUnknown: false, SharingUnbindable: false} {
		if s.FollowsHost() != want {
			t.Errorf("%s: %v", s, !want)
		}
	}
}
