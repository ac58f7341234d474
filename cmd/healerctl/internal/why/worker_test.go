package why

import (
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/prometheus/procfs"
)

// Each pod's user may call a process mount.
func TestMayMount(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root, which may mount")
	}
	for with, want := range map[string]bool{
		"":                                     true,
		"setpriv --bounding-set=-sys_admin":    false,
		"setpriv --reuid=65534 --clear-groups": false,
		"unshare --user --map-root-user":       false,
	} {
		cmd := exec.Command("sh", "-c", "exec "+with+" sh -c 'echo; read x'")
		stdin, err := cmd.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		stdout, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		_, _ = stdout.Read(make([]byte, 1)) // it is who it will be
		process, err := procfs.NewProc(cmd.Process.Pid)
		if got := mayMount(process); got != want || err != nil {
			t.Errorf("%q may mount: %t, %v", with, got, err)
		}
		_ = stdin.Close()
		_ = cmd.Wait()
	}
}

// Any user may call a process mount, and give it megabytes of arguments.
func TestLastArgument(t *testing.T) {
	for _, c := range []struct {
		arguments []string
		want      string
	}{
		{[]string{"a", "/the/last one"}, "/the/last one"},
		{[]string{strings.Repeat("x", 100_000), "/the/last one"}, ""},
	} {
		cmd := exec.Command("sh", append([]string{"-c", "echo; read x; :", "mount"}, c.arguments...)...)
		stdin, err := cmd.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		stdout, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		_, _ = stdout.Read(make([]byte, 1)) // before it runs it has no arguments
		got, err := lastArgument(cmd.Process.Pid)
		if got != c.want || (err == nil) != (c.want != "") {
			t.Errorf("%.40q, %v", got, err)
		}
		_ = stdin.Close()
		_ = cmd.Wait()
	}
}
