package main

import (
	"cmp"
	"fmt"
	"io"
	"os"
	"sync/atomic"
	"time"

	"golang.org/x/term"

	"github.com/csi-addons/node-healer/internal/printable"
)

// What a terminal shows (ECMA-48, SGR).
const (
	red    = "\x1b[31m"
	green  = "\x1b[32m"
	faint  = "\x1b[2m"
	normal = "\x1b[0m"
	erased = "\r\x1b[K"
)

// isTerminal reports whether a person reads w. Tests have others than *os.File.
func isTerminal(w io.Writer) bool {
	f, is := w.(*os.File)
	return is && term.IsTerminal(int(f.Fd())) //nolint:gosec // a descriptor
}

// colours are those of verdicts; all others are faint.
var colours = map[string]string{"abnormal": red, "unhealthy": red, "healthy": green, "healed": green}

// painted returns a text in the colour of a verdict, where w shows colours and the person wants
// them (https://no-color.org).
func painted(w io.Writer, verdict, text string) string {
	if !isTerminal(w) || os.Getenv("NO_COLOR") != "" || os.Getenv("TERM") == "dumb" {
		return text
	}
	return cmp.Or(colours[verdict], faint) + text + normal
}

// progress says on a terminal what goes on, and for how long, once that is noticed, until done has
// returned. say changes what that is.
func progress(w io.Writer, doing string) (say func(string), done func()) {
	var now atomic.Value
	say = func(doing string) { now.Store(doing) }
	if !isTerminal(w) {
		return say, func() {}
	}
	say(doing)
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for began, said := time.Now(), ""; ; said = erased {
			select {
			case <-stop:
				_, _ = fmt.Fprint(w, said)
				return
			case <-time.After(time.Second):
				_, _ = fmt.Fprintf(w, "%s%s: %d s", erased, printable.Line(now.Load().(string), maxCellBytes), int(time.Since(began).Seconds()))
			}
		}
	}()
	return say, func() {
		close(stop)
		<-stopped
	}
}
