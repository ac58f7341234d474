package driver

import (
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	rpccode "google.golang.org/genproto/googleapis/rpc/code"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/csi-addons/node-healer/internal/printable"
	"github.com/csi-addons/node-healer/pkg/api"
)

// Row is what some gRPC codes mean for another try.
type Row struct {
	Codes []codes.Code
	Class api.Class
}

// Rows returns the one table of a driver's codes; docs/errors.md prints it. A code that
// it lacks is as UNKNOWN.
func Rows() []Row {
	return []Row{
		{[]codes.Code{codes.Aborted, codes.Unavailable, codes.Canceled}, api.Class{Tier: api.Transient, Type: api.TypeExecution}},
		{[]codes.Code{codes.Internal}, api.Class{Tier: api.Retriable, Type: api.TypeExecution}},
		{[]codes.Code{codes.DeadlineExceeded}, api.Class{Tier: api.Retriable, Type: api.TypeTimeout}},
		{[]codes.Code{
			codes.InvalidArgument, codes.NotFound, codes.AlreadyExists, codes.FailedPrecondition, codes.OutOfRange,
		}, api.Class{Tier: api.Terminal, Type: api.TypeValidation}},
		{[]codes.Code{codes.PermissionDenied, codes.Unauthenticated}, api.Class{Tier: api.Terminal, Type: api.TypePermission}},
		{[]codes.Code{codes.ResourceExhausted, codes.Unimplemented, codes.DataLoss}, api.Class{Tier: api.Terminal, Type: api.TypeExecution}},
		// Drivers written in Go answer it for every failure that they give no code, so it
		// says nothing of another try. (Only NodeHealer's specification has the caller
		// study the logs first.)
		{[]codes.Code{codes.Unknown}, api.Class{Tier: api.Retriable, Type: api.TypeUnknown}},
	}
}

// Pending reports whether a driver that answers so may still be at work on what it was
// asked for.
func (r Row) Pending() bool {
	return r.Class.Tier == api.Transient || r.Class.Type == api.TypeTimeout
}

// callError is a call that a driver did not answer with a result.
type callError struct {
	method string
	code   codes.Code
	row    Row
	text   string
	// inProgress is true where the text says that the driver is at work on the volume: not all
	// drivers have the code for that, ABORTED.
	inProgress bool
}

func newCallError(method string, said *status.Status) *callError {
	rows, code := Rows(), said.Code()
	at := slices.IndexFunc(rows, func(r Row) bool { return slices.Contains(r.Codes, code) })
	if at < 0 {
		at, code = len(rows)-1, codes.Unknown
	}
	return &callError{
		method: path.Base(method), code: code, row: rows[at], text: clean(said.Message(), maxText),
		inProgress: strings.Contains(strings.ToLower(said.Message()), "operation in progress"),
	}
}

// pending reports whether the driver may still be at work on what it was asked for.
func (e *callError) pending() bool { return e.row.Pending() || e.inProgress }

func (e *callError) Error() string {
	return fmt.Sprintf("%s: %s: %s", e.method, rpccode.Code(e.code), e.text)
}

func (e *callError) Class() api.Class { return e.row.Class }

// classed is an error of this provider with its class.
type classed struct {
	error
	class api.Class
}

func (e classed) Unwrap() error { return e.error }

func (e classed) Class() api.Class { return e.class }

// The most bytes of a text and of a name that a driver wrote.
const (
	maxText = 160
	maxName = 63
)

// clean returns what a driver wrote as half a sentence on one line.
func clean(text string, limit int) string {
	words := strings.FieldsFunc(text, func(r rune) bool { return r == utf8.RuneError || r == ' ' || !strconv.IsPrint(r) })
	text = strings.TrimRight(strings.Join(words, " "), ". ")
	if text == "" {
		return "no text"
	}
	return printable.Line(text, limit)
}
