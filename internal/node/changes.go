package node

import (
	"context"
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// Changes returns a channel that gets a value after mounts came, went or were moved,
// and closes after ctx has ended. All changes until the value is taken are one, so that
// who takes them slowly is told rarely. One caller at a time, until the channel closes.
func (n *Namespace) Changes(ctx context.Context) (<-chan struct{}, error) {
	ended, end, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("watch the mount table: %w", err)
	}
	wake := context.AfterFunc(ctx, func() { _ = end.Close() })
	changed := make(chan struct{})
	go func() {
		defer close(changed)
		defer ended.Close()
		defer func() {
			if wake() {
				_ = end.Close()
			}
		}()
		for ctx.Err() == nil {
			poll := []unix.PollFd{{Fd: int32(n.watched), Events: unix.POLLPRI}, {Fd: int32(ended.Fd()), Events: unix.POLLIN}}
			_, err := unix.Poll(poll, -1)
			if errors.Is(err, unix.EINTR) {
				continue
			}
			if err != nil || poll[0].Revents&unix.POLLNVAL != 0 {
				return
			}
			select {
			case changed <- struct{}{}:
			case <-ctx.Done():
			}
		}
	}()
	return changed, nil
}
