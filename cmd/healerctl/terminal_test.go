package main

import (
	"bytes"
	"context"
	"io"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/creack/pty"

	"github.com/csi-addons/node-healer/pkg/api/adminpb"
)

// obeysNoTerminal fails if a text has a byte or rune that is there to be obeyed.
func obeysNoTerminal(t *testing.T, text string) {
	t.Helper()
	for _, r := range text {
		if r != '\n' && !strconv.IsPrint(r) {
			t.Errorf("%q in %q", r, text)
			return
		}
	}
}

// inTerminal returns what a person sees of a command: what goes to the terminal, where
// stdout may be a pipe instead.
func inTerminal(ctx context.Context, t *testing.T, piped bool, args ...string) (code int, seen, stdout string) {
	t.Helper()
	t.Setenv("TERM", "xterm")
	t.Setenv("NO_COLOR", "")
	terminal, tty, err := pty.Open()
	if err != nil {
		t.Fatal(err)
	}
	read := make(chan string)
	go func() { // ends with EIO, when no one has the other side open (pty(7))
		text, _ := io.ReadAll(terminal)
		read <- string(text)
	}()
	var pipe bytes.Buffer
	var out io.Writer = tty
	if piped {
		out = &pipe
	}
	code = run(ctx, append([]string{"healerctl"}, args...), out, tty)
	if err := tty.Close(); err != nil {
		t.Error(err)
	}
	seen = strings.ReplaceAll(<-read, "\r\n", "\n")
	if err := terminal.Close(); err != nil {
		t.Error(err)
	}
	return code, seen, pipe.String()
}

// A person sees sick volumes in red, and nothing else than the product's own colours.
func TestSickIsRed(t *testing.T) {
	f := &fakeAdmin{volumes: []*adminpb.Volume{
		{Driver: "d", VolumeId: "well", Verdict: "healthy"},
		{Driver: "d", VolumeId: "sick", Verdict: "abnormal", Reasons: []string{"NotMounted"}},
		{Driver: "d", VolumeId: hostile},
	}}
	endpoint := f.listen(t)
	const list = "DRIVER   VOLUME-ID                        PV   POD   PUBLISHED   STAGED   HEALTH\n" +
		"d        well                             -    -     0/0         0        healthy\n" +
		"\x1b[31md        sick                             -    -     0/0         0        abnormal: NotMounted\x1b[0m\n" +
		"\x1b[2md        evil\\x1b]0;x\\a\\u009b2J\\u202e\\n   -    -     0/0         0        not checked yet\x1b[0m\n"
	if code, seen, _ := inTerminal(t.Context(), t, false, "list", endpoint); code != 0 || seen != list {
		t.Errorf("exit code %d\n%q\n%q", code, seen, list)
	}
	if code, seen, _ := inTerminal(t.Context(), t, false, "check", "vol-1", endpoint); code != exitAbnormal || !strings.HasPrefix(said.ReplaceAllString(seen, ""), "\x1b[31mabnormal: vol-1\x1b[0m\n  driver ") {
		t.Errorf("exit code %d\n%q", code, seen)
	}
	if code, seen, _ := inTerminal(t.Context(), t, false, "heal", "vol-1", endpoint); code != 0 || !strings.HasPrefix(said.ReplaceAllString(seen, ""), "\x1b[32mhealed: vol-1\x1b[0m\n  driver ") {
		t.Errorf("exit code %d\n%q", code, seen)
	}
}

// said is what a terminal gets of what goes on, and takes back.
var said = regexp.MustCompile(`^(\r\x1b\[K(check|heal)ing: \d+ s)+\r\x1b\[K`)

// What takes longer than a second says so on a terminal, and takes it back.
func TestProgress(t *testing.T) {
	slow, quick := (&fakeAdmin{takes: 2500 * time.Millisecond}).listen(t), (&fakeAdmin{}).listen(t)
	if code, seen, _ := inTerminal(t.Context(), t, false, "check", "vol-1", slow); code != exitAbnormal || !said.MatchString(seen) || !strings.HasPrefix(said.ReplaceAllString(seen, ""), "\x1b[31mabnormal: ") {
		t.Errorf("exit code %d, %q", code, seen)
	}
	if code, seen, stdout := inTerminal(t.Context(), t, true, "check", "vol-1", slow); code != exitAbnormal || seen == "" || said.FindString(seen) != seen || !strings.HasPrefix(stdout, "abnormal: ") {
		t.Errorf("only stdout is a pipe: exit code %d, %q, %q", code, seen, stdout)
	}
	short := false
	for end := time.Now().Add(time.Minute); !short && time.Now().Before(end); { // until the machine is not too busy for it
		began := time.Now()
		code, seen, _ := inTerminal(t.Context(), t, true, "check", "vol-1", quick)
		short = time.Since(began) < time.Second
		if code != exitAbnormal || short && seen != "" {
			t.Errorf("a short call: exit code %d, %q", code, seen)
		}
	}
	if !short {
		t.Error("no call takes less than a second")
	}
	if code, stdout, stderr := throughPipes(t, "check", "vol-1", slow); code != exitAbnormal || !strings.HasPrefix(stdout, "abnormal: ") || stderr != "" {
		t.Errorf("both are pipes: exit code %d, %q, %q", code, stdout, stderr)
	}
}

// Whoever reads a pipe gets nothing that a terminal obeys, of any command in any format.
func TestPipesObeyNothing(t *testing.T) {
	t.Setenv("TERM", "xterm")
	endpoint := (&fakeAdmin{audit: []string{`{"volumeID":"evil\u001b[2J"}`, "torn \x1b"}}).listen(t)
	for _, command := range []string{
		"list", "list -o wide", "list -o json", "list -o yaml", "list -o \x1b[2J",
		"check vol-1", "check vol-1 -o json", "check vol-1 -o yaml", "check busy", "check \x1b[2J",
		"heal vol-1", "heal vol-1 -o json", "heal vol-1 -o yaml", "audit", "audit -o json", "audit -o yaml", "status", "status -o json", "status -o yaml",
		"explain NotMounted", "explain vendors", "explain other", "explain \x1b[2J", "\x1b[2J", "--help", "heal --help",
	} {
		_, stdout, stderr := throughPipes(t, append(strings.Fields(command), endpoint)...)
		if stdout+stderr == "" {
			t.Errorf("%q: nothing is said", command)
		}
		obeysNoTerminal(t, stdout+stderr)
	}
}

// throughPipes runs a command whose output goes to pipes of the kernel, as in a shell.
func throughPipes(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var files [2]*os.File
	var texts [2]chan string
	for i := range files {
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		files[i], texts[i] = w, make(chan string, 1)
		go func() {
			text, _ := io.ReadAll(r)
			_ = r.Close()
			texts[i] <- string(text)
		}()
	}
	code = run(t.Context(), append([]string{"healerctl"}, args...), files[0], files[1])
	for _, f := range files {
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	}
	return code, <-texts[0], <-texts[1]
}

// Ctrl-C ends the wait for an answer, and says what becomes of the heal.
func TestInterrupted(t *testing.T) {
	endpoint := (&fakeAdmin{takes: time.Minute}).listen(t)
	for _, command := range []string{"check", "heal"} {
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(100*time.Millisecond, cancel)
		code, seen, _ := inTerminal(ctx, t, false, command, "vol-1", endpoint)
		cancel()
		if code != exitNoAnswer || said.ReplaceAllString(seen, "") != "healerctl: interrupted; the server finishes what it began\n" {
			t.Errorf("%s: exit code %d, %q", command, code, seen)
		}
	}
}
