package nodeserver

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"google.golang.org/grpc/metadata"

	"github.com/csi-addons/node-healer/internal/printable"
	"github.com/csi-addons/node-healer/pkg/api/forwarded"
	"github.com/csi-addons/node-healer/pkg/healer"
)

// maxCallerBytes bounds a caller's name, which is written to the log and the audit
// log. A service account's has at most 340 bytes.
const maxCallerBytes = 512

// caller is the user on whose behalf a call is made.
type caller struct {
	name string
	// checks is true for a caller that may check volumes, and change nothing.
	checks bool
}

// localCaller returns the caller for a process on the server's own socket, which may
// use everything.
func localCaller(p Peer, _ metadata.MD) (caller, error) {
	return caller{name: localCallers + strconv.FormatUint(uint64(p.UID), 10)}, nil
}

// localCallers is what the names of callers on the server's own socket begin with.
const localCallers = "uid "

// forwardedCaller returns the caller that the gateway authorized.
func forwardedCaller(_ Peer, md metadata.MD) (caller, error) {
	names, verbs := md.Get(forwarded.Caller), md.Get(forwarded.Verb)
	if len(names) != 1 || names[0] == "" || len(verbs) != 1 {
		return caller{}, errors.New("the gateway does not say who calls, and what that caller may do")
	}
	if verbs[0] != forwarded.VerbHeal && verbs[0] != forwarded.VerbCheck {
		return caller{}, fmt.Errorf("the gateway says that the caller may %s, which is neither heal nor check", quoted(verbs[0]))
	}
	return caller{name: foreignName(names[0]), checks: verbs[0] == forwarded.VerbCheck}, nil
}

type checksKey struct{}

// foreignName returns the name of a caller whom the log, the audit log and the metrics must
// not take for one of the node's own.
func foreignName(name string) string {
	if name == healer.CallerLoop || strings.HasPrefix(name, localCallers) {
		name = "user " + name
	}
	return printable.Line(name, maxCallerBytes)
}

func (c caller) in(ctx context.Context) context.Context {
	return context.WithValue(healer.WithCaller(ctx, c.name), checksKey{}, c.checks)
}

// onlyChecks reports whether the caller may change nothing.
func onlyChecks(ctx context.Context) bool {
	checks, _ := ctx.Value(checksKey{}).(bool)
	return checks
}
