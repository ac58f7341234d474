package healer

import (
	"syscall"
	"testing"

	"github.com/csi-addons/node-healer/pkg/facts"
)

func TestLookupFailed(t *testing.T) {
	answered := func(e syscall.Errno) facts.Lookup { return facts.Lookup{Asked: true, Errno: e} }
	for name, tc := range map[string]struct {
		l             facts.Lookup
		failed, ifHad bool
	}{
		"not asked":     {facts.Lookup{}, false, false},
		"no such name":  {answered(syscall.ENOENT), false, false},
		"such a name":   {answered(0), false, false},
		"no answer":     {facts.Lookup{Asked: true, TimedOut: true}, true, true},
		"EIO":           {answered(syscall.EIO), true, true},
		"ETIMEDOUT":     {answered(syscall.ETIMEDOUT), true, true},
		"ENOTCONN":      {answered(syscall.ENOTCONN), true, true},
		"EACCES":        {answered(syscall.EACCES), false, true},
		"EPERM":         {answered(syscall.EPERM), false, true},
		"too long":      {answered(syscall.ENAMETOOLONG), false, false},
		"not supported": {answered(syscall.ENOSYS), false, false},
	} {
		never, once := Case{}, Case{WasLookedUp: true}
		if failed, ifHad := never.LookupFailed(tc.l), once.LookupFailed(tc.l); failed != tc.failed || ifHad != tc.ifHad {
			t.Errorf("%s: failed %t, and %t after a good answer", name, failed, ifHad)
		}
	}
}
