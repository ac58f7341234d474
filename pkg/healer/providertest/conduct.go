package providertest

import (
	"errors"
	"io"
	"net"
	"strings"
	"time"

	"github.com/csi-addons/node-healer/internal/printable"
)

// conduct is how all tools answer.
type conduct int

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
func (t *Tools) behave(how conduct) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.conduct = how
}

// used returns how often any tool was called.
func (t *Tools) used() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.calls
}

// hostile returns a connection to something that takes what it is sent, and answers
// with garbage or not at all. It hangs up long after each deadline of the suite.
func hostile(how conduct) net.Conn {
	ours, theirs := net.Pipe()
	time.AfterFunc(patience, func() { _ = theirs.Close() })
	go func() { _, _ = io.Copy(io.Discard, theirs) }()
	if how == garbled {
		go func() {
			_, _ = io.WriteString(theirs, garbage)
			_ = theirs.Close()
		}()
	}
	return ours
}
