package ops

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// holdsEnv makes this test binary a process that holds what it says, one
// "way=path" in a line, until its standard input ends.
const holdsEnv = "NODE_HEALER_TEST_HOLDS"

func init() {
	ways := os.Getenv(holdsEnv)
	if ways == "" {
		return
	}
	for _, way := range strings.Split(ways, "\n") {
		how, path, _ := strings.Cut(way, "=")
		if err := hold(how, path); err != nil {
			fmt.Println(way, err)
			os.Exit(1)
		}
	}
	fmt.Println("ready")
	_, _ = io.Copy(io.Discard, os.Stdin)
	os.Exit(0)
}

func hold(how, path string) error {
	switch how {
	case "cwd":
		return unix.Chdir(path)
	case "root":
		return unix.Chroot(path)
	case "open":
		_, err := unix.Open(path, unix.O_RDONLY, 0)
		return err
	case "stuck": // in a thread that asks a volume which does not answer
		go func() {
			var st unix.Stat_t
			_ = unix.Stat(path, &st)
		}()
	}
	return nil
}

// holder starts a process that holds something and is done with that when it
// returns.
func holder(t *testing.T, unshare uintptr, ways ...string) int {
	t.Helper()
	cmd := exec.Command("/proc/self/exe")
	cmd.Dir = "/"
	cmd.Env = append(os.Environ(), holdsEnv+"="+strings.Join(ways, "\n"))
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Unshareflags: unshare}
	stdin, err := cmd.StdinPipe()
	must(t, err)
	stdout, err := cmd.StdoutPipe()
	must(t, err)
	// It dies with the thread that starts it.
	runtime.LockOSThread()
	must(t, cmd.Start())
	t.Cleanup(func() {
		_ = stdin.Close()
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	if line, err := bufio.NewReader(stdout).ReadString('\n'); line != "ready\n" {
		t.Fatalf("%v: %q, %v", ways, line, err)
	}
	return cmd.Process.Pid
}

// needsRoot skips on a laptop and fails where skipping is not allowed.
func needsRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() == 0 {
		return
	}
	if os.Getenv("CI") != "" {
		t.Fatal("needs root, and in CI a test that would skip fails")
	}
	t.Skip("needs root, for mounts and loop devices")
}
