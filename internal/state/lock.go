package state

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// Of a server that was killed while it started a worker, the child keeps the lock until it runs the
// worker's program (O_CLOEXEC), which on a busy node may take a while: the next server waits for it.
const (
	lockWait = 2 * time.Second
	lockPoll = 10 * time.Millisecond
)

// takeLock keeps a second server out of the directory. The kernel releases the lock
// when the server ends, however it ends.
func takeLock(dir string) (*os.File, error) {
	lock, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_RDWR|os.O_CREATE, fileMode)
	if err != nil {
		return nil, fmt.Errorf("state directory: %w", err)
	}
	for end := time.Now().Add(lockWait); ; time.Sleep(lockPoll) {
		err = unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if !errors.Is(err, unix.EWOULDBLOCK) || time.Now().After(end) {
			break
		}
	}
	switch {
	case err == nil:
		return lock, nil
	case errors.Is(err, unix.EWOULDBLOCK):
		err = fmt.Errorf("state directory %s is in use by another node-healer", dir)
	default:
		err = fmt.Errorf("lock state directory %s: %w", dir, err)
	}
	return nil, errors.Join(err, lock.Close())
}
