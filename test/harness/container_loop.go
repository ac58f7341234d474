package harness

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// Loop is a process in a container that uses files of a volume all the time,
// opening them again each time, and goes on after errors.
type Loop struct {
	// Read is a file that it reads, Write one that it appends to, if there is one.
	Read, Write string
	// Busy has it go on without a pause.
	Busy bool
}

// loopAt is where a container has what belongs to its loop.
const loopAt = "/loop"

// Progress is how far a loop has come.
type Progress struct{ Turns, Reads, Writes int }

// script uses nothing but what is built into busybox's shell: no process is
// started in a turn. It tells each error once.
const script = `echo $$ >>/loop/started
exec 9<>/loop/tick
turns=0 reads=0 writes=0 seen=
note() {
	read -r error </loop/error
	case "$seen" in
	*"|$error|"*) ;;
	*) seen="$seen|$error|"; echo "$1 $error" >>/loop/errors ;;
	esac
}
while :; do
	turns=$((turns+1)) line=
	{ read -r line <READ; } 2>/loop/error
	if [ -n "$line" ]; then reads=$((reads+1)); else note read; fi
	WRITE
	echo "$turns $reads $writes" >/loop/progress
	PAUSE
done
`

// writeScript is the part of a turn that writes.
const writeScript = `if { echo "$$ $turns" >>FILE; } 2>/loop/error; then writes=$((writes+1)); else note write; fi`

func (l *Loop) layOut(t testing.TB, dir string) {
	t.Helper()
	Mkdir(t, dir)
	// In a user namespace it is another root who writes here.
	Must(t, os.Chmod(dir, 0o777))
	Must(t, unix.Mkfifo(filepath.Join(dir, "tick"), 0))
	Must(t, os.Chmod(filepath.Join(dir, "tick"), 0o666))
	write := ":"
	if l.Write != "" {
		write = strings.ReplaceAll(writeScript, "FILE", l.Write)
	}
	pause := "read -t 0.005 -u 9 nothing"
	if l.Busy {
		pause = ":"
	}
	text := strings.NewReplacer("READ", l.Read, "WRITE", write, "PAUSE", pause).Replace(script)
	Must(t, os.WriteFile(filepath.Join(dir, "script"), []byte(text), 0o644))
}

// Progress returns how far the loop has come.
func (c *Container) Progress() Progress {
	t := c.node.T
	t.Helper()
	var b Progress
	// The shell empties the file before it writes it.
	Eventually(t, "the loop in the container goes on", func() bool {
		raw, err := os.ReadFile(filepath.Join(c.loop, "progress"))
		if err != nil || !strings.HasSuffix(string(raw), "\n") {
			return false
		}
		_, err = fmt.Sscan(string(raw), &b.Turns, &b.Reads, &b.Writes)
		return err == nil
	})
	return b
}

// AwaitTurns waits until the loop has gone round, and returns what came of it: the
// difference of two values of Progress.
func (c *Container) AwaitTurns() Progress {
	c.node.T.Helper()
	// The turn that is under way may have begun before what the test just did.
	first := c.awaitTurn(c.Progress().Turns + 1)
	last := c.awaitTurn(first.Turns + 2)
	return Progress{Turns: last.Turns - first.Turns, Reads: last.Reads - first.Reads, Writes: last.Writes - first.Writes}
}

// awaitTurn waits until the loop has made so many turns.
func (c *Container) awaitTurn(turns int) (b Progress) {
	c.node.T.Helper()
	Eventually(c.node.T, "the loop in the container goes round", func() bool {
		b = c.Progress()
		return b.Turns >= turns
	})
	return b
}

// Starts is how often the loop's process was started.
func (c *Container) Starts() int {
	c.node.T.Helper()
	return len(c.told("started"))
}

// Errors returns every error that the loop has met, once, as "read" or "write" and
// what the shell said.
func (c *Container) Errors() []string {
	c.node.T.Helper()
	return c.told("errors")
}

func (c *Container) told(file string) []string {
	raw, err := os.ReadFile(filepath.Join(c.loop, file))
	if os.IsNotExist(err) {
		return nil
	}
	Must(c.node.T, err)
	return slices.Collect(strings.Lines(string(raw)))
}
