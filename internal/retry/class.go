package retry

import (
	"time"

	"github.com/csi-addons/node-healer/pkg/api"
)

// permissionRetry gives an administrator's change of rights time to arrive.
const permissionRetry = 30 * time.Second

// After returns how long to wait before another try of what failed so the given number of
// times in a row, and false where there is no other try before something changes. The
// caller adds jitter.
func After(c api.Class, failures int) (time.Duration, bool) {
	switch {
	case c.Type == api.TypePermission:
		return permissionRetry, failures <= 1
	case c.Tier == api.Transient:
		return Transient.After(failures), true
	case c.Tier == api.Retriable:
		return From(time.Minute).After(failures), true
	}
	return 0, false
}
