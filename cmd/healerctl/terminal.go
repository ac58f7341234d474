package main

import (
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

// colours reports whether w shows colours and the person wants them (https://no-color.org).
func colours(w io.Writer) bool {
	return isTerminal(w) && os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb"
}

// colourOf returns the colour of a verdict.
func colourOf(verdict string) string {
	switch verdict {
	case "abnormal", "unhealthy":
		return red
	case "healthy", "healed":
		return green
	default:
		return faint
	}
}

// painted returns a text in the colour of a verdict, where colours are shown.
func painted(w io.Writer, verdict, text string) string {
	if !colours(w) {
		return text
	}
	return colourOf(verdict) + text + normal
}

// working says on a terminal what goes on, and for how long, once that is noticed.
type working struct {
	says          atomic.Pointer[string]
	stop, stopped chan struct{}
}

func progress(w io.Writer, doing string) *working {
	p := &working{stop: make(chan struct{}), stopped: make(chan struct{})}
	p.text(doing)
	if isTerminal(w) {
		go p.show(w)
	} else {
		close(p.stopped)
	}
	return p
}

func (p *working) text(doing string) { p.says.Store(&doing) }

func (p *working) show(w io.Writer) {
	defer close(p.stopped)
	began, said := time.Now(), false
	for {
		select {
		case <-p.stop:
			if said {
				_, _ = fmt.Fprint(w, erased)
			}
			return
		case <-time.After(time.Second):
			said = true
			_, _ = fmt.Fprintf(w, "%s%s: %d s", erased, printable.Line(*p.says.Load(), maxCellBytes), int(time.Since(began).Seconds()))
		}
	}
}

// done returns when nothing more is said.
func (p *working) done() {
	close(p.stop)
	<-p.stopped
}
