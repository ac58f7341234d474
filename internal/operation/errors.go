package operation

import (
	"errors"
	"syscall"
)

// ErrRefused is the leaf of an error with which an operation says "must not"
// instead of "went wrong". It crosses the process boundary.
var ErrRefused = errors.New("refused")

// Error is an error as it crosses the process boundary: its text and the
// leaves that callers compare with errors.Is.
type Error struct {
	Text    string
	Errno   syscall.Errno
	Refused bool
}

func toWire(err error) *Error {
	if err == nil {
		return nil
	}
	w := &Error{Text: err.Error(), Refused: errors.Is(err, ErrRefused)}
	errors.As(err, &w.Errno)
	return w
}

func (w *Error) Error() string { return w.Text }

func (w *Error) Unwrap() []error {
	var leaves []error
	if w.Errno != 0 {
		leaves = append(leaves, w.Errno)
	}
	if w.Refused {
		leaves = append(leaves, ErrRefused)
	}
	return leaves
}
