package worker

import "errors"

// The ways in which a worker itself can fail. None tells what the operation did or did
// not do.
var (
	// ErrLost: the process ended before it answered.
	ErrLost = errors.New("the worker was lost before it answered")
	// ErrTimeout: no answer by the deadline; the process was ended.
	ErrTimeout = errors.New("the worker did not answer in time")
	// ErrStuck: no answer by the deadline, and the process cannot be ended: it
	// waits uninterruptibly in the kernel. It is reaped when it ends.
	ErrStuck = errors.New("the worker did not answer in time and cannot be ended")
	// ErrLeft: the operation answered, and its process cannot be ended, because
	// one of its threads waits uninterruptibly. The answer is valid. The process is
	// reaped when it ends.
	ErrLeft = errors.New("the worker answered, and a thread of it cannot be ended")
	// ErrNoWorker: no worker became free, or came to life, by the deadline.
	ErrNoWorker = errors.New("no worker became free or was started in time")
	// ErrClosed: the pool is shut down.
	ErrClosed = errors.New("the worker pool is closed")
)

// callError says what became of a worker, with where it waited.
type callError struct {
	is    error
	waits []string
}

func (e *callError) Error() string { return e.is.Error() }

func (e *callError) Unwrap() error { return e.is }

// stuckError is ErrStuck or ErrLeft: the process still exists.
type stuckError struct {
	callError
	ended <-chan struct{}
}

// Ended returns a channel that closes when the stuck process has ended: until
// then what it was doing may still happen.
func (e *stuckError) Ended() <-chan struct{} { return e.ended }

// Waits tells where in the kernel the worker waited at its deadline: the
// functions, innermost first; nil when the kernel does not tell.
func (e *callError) Waits() []string { return e.waits }
