package host

import "sync"

// uuids keeps the filesystem UUID that a mount's filesystem told. A unique mount
// id is never used again, and its filesystem stays the same.
type uuids struct {
	mu    sync.Mutex
	known map[uint64]string
}

// maxUUIDs bounds what is kept; see maxVolDataFiles.
const maxUUIDs = 4096

// of is empty when nothing is known.
func (u *uuids) of(m Mount) string {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.known[m.ID]
}

func (u *uuids) keep(m Mount, uuid string) {
	if m.ID == 0 || uuid == "" {
		return
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.known == nil || len(u.known) >= maxUUIDs {
		u.known = map[uint64]string{}
	}
	u.known[m.ID] = uuid
}
