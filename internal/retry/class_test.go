package retry

import (
	"slices"
	"testing"
	"time"

	"github.com/csi-addons/node-healer/pkg/api"
)

func TestAfter(t *testing.T) {
	const s, m = time.Second, time.Minute
	for _, tc := range []struct {
		class api.Class
		want  []time.Duration // ends where there is no other try
		ends  bool
	}{
		{api.Class{Tier: api.Transient, Type: api.TypeExecution}, []time.Duration{s, 2 * s, 4 * s, 8 * s, 16 * s, 32 * s, 64 * s, 128 * s, 256 * s, 512 * s, 11 * m, 11 * m}, false},
		{api.Class{Tier: api.Transient, Type: api.TypeTimeout}, []time.Duration{s, 2 * s}, false},
		{api.Class{Tier: api.Retriable, Type: api.TypeExecution}, []time.Duration{m, 2 * m, 4 * m, 8 * m, 11 * m, 11 * m}, false},
		{api.Class{Tier: api.Retriable, Type: api.TypeUnknown}, []time.Duration{m, 2 * m, 4 * m}, false},
		{api.Class{Tier: api.Terminal, Type: api.TypeExecution}, nil, true},
		{api.Class{Tier: api.Terminal, Type: api.TypePermission}, []time.Duration{30 * s}, true},
		{api.Class{Tier: api.Retriable, Type: api.TypePermission}, []time.Duration{30 * s}, true},
	} {
		var got []time.Duration
		for failures := 1; failures <= 12; failures++ {
			after, again := After(tc.class, failures)
			if !again {
				break
			}
			got = append(got, after)
		}
		if ended := len(got) < 12; ended != tc.ends || !slices.Equal(got[:min(len(got), len(tc.want))], tc.want) || tc.ends && len(got) != len(tc.want) {
			t.Errorf("%s: %v, want %v", tc.class, got, tc.want)
		}
	}
	if d, again := After(api.Class{Tier: api.Transient, Type: api.TypeExecution}, 1<<30); d != 11*m || !again {
		t.Errorf("after very many failures: %s, %v", d, again)
	}
}
