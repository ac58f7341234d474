package harness

import (
	"bufio"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// TestKilledLeavesNoDevice kills the tests while a filesystem is frozen and a writer waits for
// it: nothing keeps the loop device.
func TestKilledLeavesNoDevice(t *testing.T) {
	NeedsRoot(t)
	const within = "NODE_HEALER_TEST_FREEZES"
	if os.Getenv(within) != "" {
		v := NewNode(t).NewVolume("ext4", "frozen")
		v.Freeze()
		writer := exec.Command("touch", filepath.Join(v.Staging, "new"))
		Must(t, writer.Start())
		Eventually(t, "the writer waits", func() bool { return State(writer.Process.Pid) == "D" })
		t.Log(v.Image, "is attached")
		select {} // until it is killed
	}
	for name, kill := range map[string]func(pid int) error{
		"process":                 func(pid int) error { return unix.Kill(pid, unix.SIGKILL) },
		"process group, as by ^C": func(pid int) error { return unix.Kill(-pid, unix.SIGINT) },
	} {
		t.Run(name, func(t *testing.T) {
			cmd := exec.Command("/proc/self/exe", "-test.run=^TestKilledLeavesNoDevice$", "-test.v")
			without := slices.DeleteFunc(os.Environ(), func(e string) bool { return strings.HasPrefix(e, levelEnv) })
			cmd.Env = append(without, within+"=yes", "TMPDIR="+t.TempDir())
			cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: unix.SIGKILL}
			out, err := cmd.StdoutPipe()
			Must(t, err)
			Must(t, cmd.Start())
			image := ""
			for lines := bufio.NewScanner(out); image == "" && lines.Scan(); {
				if text, is := strings.CutSuffix(lines.Text(), " is attached"); is {
					image = text[strings.Index(text, "/"):]
				}
			}
			if image == "" || len(devicesOn(image)) == 0 {
				t.Errorf("there is no device on %q", image)
			}
			Must(t, kill(cmd.Process.Pid))
			_ = cmd.Wait()
			Eventually(t, "the device is gone", func() bool { return len(devicesOn(image)) == 0 })
		})
	}
}
