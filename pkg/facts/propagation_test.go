package facts

import "testing"

func TestFollowsHost(t *testing.T) {
	for s, want := range map[Sharing]bool{SharingSlave: true, SharingPeer: true, SharingNone: false, SharingUnknown: false} {
		if s.FollowsHost() != want {
			t.Errorf("%s: %v", s, !want)
		}
	}
}
