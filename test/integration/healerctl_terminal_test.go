package integration

import (
	"bufio"
	"io"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/creack/pty"

	"github.com/csi-addons/node-healer/test/harness"
)

// terminal is a program that a person runs.
type terminal struct {
	t   *testing.T
	cmd *exec.Cmd
	tty *os.File
	out *bufio.Reader
}

func inTerminal(t *testing.T, env string, program string, args ...string) *terminal {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), program, args...)
	cmd.Env = append(os.Environ(), "TERM=xterm", env)
	tty, err := pty.StartWithSize(cmd, &pty.Winsize{Rows: 24, Cols: 200})
	harness.Must(t, err)
	t.Cleanup(func() { _ = tty.Close() })
	return &terminal{t: t, cmd: cmd, tty: tty, out: bufio.NewReader(tty)}
}

// rest is what the program still prints, once it has ended; reading fails then.
func (x *terminal) rest() string {
	x.t.Helper()
	text, _ := io.ReadAll(x.out)
	if err := x.cmd.Wait(); err != nil {
		x.t.Errorf("%s: %v\n%s", x.cmd, err, text)
	}
	return string(text)
}

// TestHealerctlInATerminal shows colours to a person who wants them, and watches until
// Ctrl-C.
func TestHealerctlInATerminal(t *testing.T) {
	program := harness.BuildHealerctl(t)
	n := harness.NewNode(t, "--loop=observe")
	n.AnyDriver = true
	n.Start()
	v := n.NewVolume("tmpfs", "seen")
	n.Expect("healthy", v.Request())
	endpoint := "--endpoint=unix://" + n.Socket()
	const green = "\x1b[32mhealthy:"
	if out := inTerminal(t, "LANG=C", program, "check", "seen", endpoint).rest(); !strings.Contains(out, green) {
		t.Errorf("no colour: %q", out)
	}
	if out := inTerminal(t, "NO_COLOR=1", program, "check", "seen", endpoint).rest(); strings.Contains(out, "\x1b[3") || !strings.Contains(out, "healthy:") {
		t.Errorf("a colour: %q", out)
	}
	watch := inTerminal(t, "LANG=C", program, "watch", endpoint)
	for {
		line, err := watch.out.ReadString('\n')
		harness.Must(t, err)
		if strings.Contains(line, "seen") && strings.Contains(line, "healthy") {
			break
		}
	}
	_, err := watch.tty.WriteString("\x03")
	harness.Must(t, err)
	watch.rest()
}
