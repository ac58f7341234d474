package providertest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/csi-addons/node-healer/internal/printable"
	"github.com/csi-addons/node-healer/pkg/healer"
)

// Tools are a node in memory, for the tests of a provider. They refuse a context without
// a deadline, as the real ones do.
type Tools struct {
	// Files are by their paths. Files that are not here do not exist.
	Files map[string]string
	// Programs are by their paths. One that is not here cannot be started.
	Programs map[string]Program
	// Addresses answer with an error, or nil. Those that are not here never answer.
	Addresses map[string]error
	// Sockets are by their paths. Those that are not here do not exist.
	Sockets map[string]func(context.Context) (net.Conn, error)

	conduct, calls atomic.Int64

	mu  sync.Mutex
	ran []healer.Program
}

// A Program stands for a program on the node.
type Program = func(context.Context, healer.Program) (output string, err error)

// Succeeds is a Program that ends well and writes nothing.
func Succeeds(context.Context, healer.Program) (output string, err error) { return "", nil }

// Ran returns the programs that were run, in order.
func (t *Tools) Ran() []healer.Program {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Clone(t.ran)
}

// maxFile is the longest file that the real tools read, in bytes.
const maxFile = 1 << 20

// ReadFile implements healer.Tools.
func (t *Tools) ReadFile(ctx context.Context, dir, name string, limit int) ([]byte, error) {
	how, err := t.may(ctx, false)
	text, exists := t.Files[filepath.Join(dir, name)]
	if how == garbled {
		text, exists = garbage[:min(max(limit, 0), len(garbage))], true
	}
	switch {
	case err != nil:
		return nil, err
	case !filepath.IsLocal(name):
		return nil, fmt.Errorf("%q is not beneath %s", name, dir)
	case limit > maxFile:
		return nil, fmt.Errorf("a limit of %d bytes is more than %d", limit, maxFile)
	case !exists:
		return nil, &fs.PathError{Op: "open", Path: filepath.Join(dir, name), Err: fs.ErrNotExist}
	case len(text) > limit:
		return nil, fmt.Errorf("%q is longer than %d bytes", name, limit)
	default:
		return []byte(text), nil
	}
}

// Run implements healer.Tools.
func (t *Tools) Run(ctx context.Context, p healer.Program) (output string, err error) {
	how, err := t.may(ctx, false)
	if err != nil && !errors.Is(err, errTool) {
		return "", err
	}
	if p.Stdin.ShownIn(slices.Concat(p.Args, p.Env)) {
		return "", fmt.Errorf("a secret in the arguments or the environment of %s", p.Path)
	}
	t.mu.Lock()
	t.ran = append(t.ran, p)
	t.mu.Unlock()
	switch {
	case how == garbled:
		return hostileOutput, nil
	case how == failing:
		return hostileOutput, &healer.ExitError{Program: p.Path, Code: 1, Text: hostileOutput}
	case t.Programs[p.Path] == nil:
		return "", &fs.PathError{Op: "exec", Path: p.Path, Err: fs.ErrNotExist}
	default:
		return t.Programs[p.Path](ctx, p)
	}
}

// Reach implements healer.Tools.
func (t *Tools) Reach(ctx context.Context, address string) error {
	how, err := t.may(ctx, false)
	if err != nil || how == garbled {
		return err
	}
	err, answers := t.Addresses[address]
	if !answers {
		<-ctx.Done()
		return ctx.Err()
	}
	return err
}

// Dial implements healer.Tools.
func (t *Tools) Dial(ctx context.Context, socket string) (net.Conn, error) {
	how, err := t.may(ctx, true)
	switch {
	case err != nil:
		return nil, err
	case how == garbled, how == silent:
		return hostile(how), nil
	case t.Sockets[socket] == nil:
		return nil, &fs.PathError{Op: "connect", Path: socket, Err: fs.ErrNotExist}
	default:
		return t.Sockets[socket](ctx)
	}
}

// may returns how to answer a call, or why it fails. A silent socket still connects.
func (t *Tools) may(ctx context.Context, connects bool) (conduct, error) {
	t.calls.Add(1)
	how := conduct(t.conduct.Load())
	switch _, bounded := ctx.Deadline(); {
	case !bounded:
		return how, errors.New("a context without a deadline")
	case how == failing:
		return how, errTool
	case how == silent && !connects:
		<-ctx.Done()
	}
	return how, ctx.Err()
}

// conduct is how all tools answer.
type conduct int64

const (
	// asGiven is as the fields of Tools say.
	asGiven conduct = iota
	// failing is with an error each time. Programs exit with 1.
	failing
	// garbled is with what a hostile pod or driver would answer.
	garbled
	// silent is not before the call's context ends. A socket takes what is sent.
	silent
)

// conducts are those that Collect has to bear.
var conducts = map[string]conduct{"failing": failing, "garbled": garbled, "silent": silent}

var errTool = errors.New("the node in memory fails")

// garbage is what a file or a socket may hold.
var garbage = "healthy.\n\x1b[2J\x00\xff" + strings.Repeat("%s{]\xc3\x28 ", 1<<14)

// maxOutput is the longest output of a program that the real tools return, in bytes.
const maxOutput = 4 << 10

// hostileOutput is what a program may write, a secret of its own among it, cleaned and cut
// as the real tools do it.
var hostileOutput = printable.Line(secret+" "+garbage, maxOutput)

// behave sets how the tools answer from now on.
func (t *Tools) behave(how conduct) { t.conduct.Store(int64(how)) }

// used returns how often any tool was called.
func (t *Tools) used() int { return int(t.calls.Load()) }

// hostile returns a connection to something that takes what it is sent, and answers
// with garbage or not at all. It hangs up long after each deadline of the suite.
func hostile(how conduct) net.Conn {
	ours, theirs := net.Pipe()
	time.AfterFunc(2*(brief+patience), func() { _ = theirs.Close() })
	go func() { _, _ = io.Copy(io.Discard, theirs) }()
	if how == garbled {
		go func() {
			_, _ = io.WriteString(theirs, garbage)
			_ = theirs.Close()
		}()
	}
	return ours
}
