package healer

import (
	"cmp"
	"errors"
	"fmt"
)

// Kind classifies the errors that mean "the question could not be answered". A sick
// volume is no error: that is a Report.
type Kind int

// The kinds, one for each status code that the contract knows.
const (
	// KindUnknown: an operation of our own failed (UNKNOWN).
	KindUnknown Kind = iota
	// KindInvalid: the request is wrong (INVALID_ARGUMENT).
	KindInvalid
	// KindNotFound: no such volume here (NOT_FOUND).
	KindNotFound
	// KindBusy: another operation on the volume is running (ABORTED).
	KindBusy
	// KindUnauthenticated: the secrets were refused (UNAUTHENTICATED).
	KindUnauthenticated
	// KindDisabled: the server was told not to offer the call (UNIMPLEMENTED).
	KindDisabled
)

// String returns the kind in one word, as metrics have it: of one that is none of these, as a
// provider may make it, that of KindUnknown.
func (k Kind) String() string {
	return cmp.Or(map[Kind]string{
		KindInvalid: "invalid", KindNotFound: "not-found", KindBusy: "busy", KindUnauthenticated: "unauthenticated", KindDisabled: "disabled",
	}[k], "failed")
}

// Error is an error with its kind. Its text is for the caller: it names the field and
// the rule, or the failed operation, and never holds a secret.
type Error struct {
	Kind Kind
	// Step is the step that failed; empty where none ran.
	Step string
	Text string
	Err  error
}

func (e *Error) Error() string {
	if e.Err == nil {
		return e.Text
	}
	return e.Text + ": " + e.Err.Error()
}

func (e *Error) Unwrap() error { return e.Err }

// Invalid returns an error that names the field of a request and the rule it breaks.
func Invalid(field, rule string, args ...any) error {
	return &Error{Kind: KindInvalid, Text: field + ": " + fmt.Sprintf(rule, args...)}
}

// NotFound returns an error for a volume that is not on this node.
func NotFound(text string, args ...any) error {
	return &Error{Kind: KindNotFound, Text: fmt.Sprintf(text, args...)}
}

// Failed returns an error that names the operation of our own that failed.
func Failed(operation string, err error) error {
	return &Error{Kind: KindUnknown, Text: operation, Err: err}
}

// ErrShuttingDown is the error of a call, or the refusal of a step, after Close.
var ErrShuttingDown = errors.New("the server is shutting down")

// ErrDriverAway is the error of a step that found nobody listening at the driver's socket.
// Nothing was asked of the driver and nothing changed: it is no try.
var ErrDriverAway = errors.New("nobody listens at the driver's socket")

// KindOf returns the kind of an error, KindUnknown for a foreign one.
func KindOf(err error) Kind {
	var e *Error
	if errors.As(err, &e) {
		return e.Kind
	}
	return KindUnknown
}
