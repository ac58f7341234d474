package main

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"golang.org/x/term"

	"github.com/csi-addons/node-healer/pkg/api/adminpb"
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
	case "abnormal":
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

// volumesInColour passes a table of volumes on, a line for each below its head. The lines
// of those that work stay as they are, so that the others stand out.
func volumesInColour(w io.Writer, volumes []*adminpb.Volume, table func(io.Writer) error) error {
	if !colours(w) {
		return table(w)
	}
	var text bytes.Buffer
	if err := table(&text); err != nil {
		return err
	}
	lines := strings.Split(strings.TrimSuffix(text.String(), "\n"), "\n")
	for i, v := range volumes {
		if v.GetVerdict() != "healthy" && i+1 < len(lines) {
			lines[i+1] = painted(w, v.GetVerdict(), lines[i+1])
		}
	}
	_, err := fmt.Fprintln(w, strings.Join(lines, "\n"))
	return err
}

// progress says on a terminal for how long a call goes on, once that is noticed.
func progress(w io.Writer, doing string) (done func()) {
	if !isTerminal(w) {
		return func() {}
	}
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		began, said := time.Now(), false
		for {
			select {
			case <-stop:
				if said {
					_, _ = fmt.Fprint(w, erased)
				}
				return
			case <-time.After(time.Second):
				said = true
				_, _ = fmt.Fprintf(w, "%s%s: %d s", erased, doing, int(time.Since(began).Seconds()))
			}
		}
	}()
	return func() { close(stop); <-stopped }
}
