package harness

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/csi-addons/node-healer/pkg/facts"
)

// Attacker is a process of a container's user, uid 1000 without any capability,
// that does what a test says. It is in the container's cgroup.
type Attacker struct {
	t     testing.TB
	pid   int
	calls *json.Encoder
	// answers are read one at a time: a process that hangs gives none.
	answers *json.Decoder
	out     interface{ SetReadDeadline(time.Time) error }
}

// attackerUser is the user that a container's processes run as.
const attackerUser = "1000:1000"

// NewAttacker starts a process in a user and a mount namespace of its own (as
// `unshare -Urm` does), in which it is root.
func (c *Container) NewAttacker() *Attacker {
	c.node.T.Helper()
	return c.attacker()
}

// NewUser starts a process in the namespaces of the container.
func (c *Container) NewUser() *Attacker {
	c.node.T.Helper()
	return c.attacker("plain")
}

func (c *Container) attacker(args ...string) *Attacker {
	t := c.node.T
	t.Helper()
	c.bringAttacker()
	pidFile := filepath.Join(c.node.Dir, "attacker-"+hash(t.Name() + c.id)[:8])
	_ = os.Remove(pidFile)
	runc := slices.Concat(c.enter[1:len(c.enter)-1], []string{"--user", attackerUser, "--pid-file", pidFile, c.id, attackerAt}, args)
	cmd := exec.Command(c.enter[0], runc...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: unix.SIGKILL}
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	Must(t, err)
	out, err := cmd.StdoutPipe()
	Must(t, err)
	Must(t, cmd.Start())
	t.Cleanup(func() { c.Kill(); _ = cmd.Process.Kill(); _ = cmd.Wait() })
	a := &Attacker{t: t, calls: json.NewEncoder(in), answers: json.NewDecoder(out), out: out.(*os.File)}
	a.Do("mkdir", "/proc") // it answers, and so it is there
	Eventually(t, "runc tells its number", func() bool {
		raw, err := os.ReadFile(pidFile)
		if err == nil {
			a.pid, err = strconv.Atoi(string(raw))
		}
		return err == nil
	})
	if len(args) == 0 { // what runc started has started it
		children := childrenOf(a.pid)
		if len(children) != 1 {
			t.Fatalf("the attacker has %d processes", len(children))
		}
		a.pid = children[0]
	}
	return a
}

// attackerAt is the attacker's program in a container.
const attackerAt = "/attacker"

// bringAttacker puts the program into the container, and a directory to mount on.
func (c *Container) bringAttacker() {
	t := c.node.T
	t.Helper()
	program, err := attackerProgram()
	Must(t, err)
	rootfs := filepath.Join(c.node.Dir, "bundle-"+c.id, "rootfs")
	Mkdir(t, filepath.Join(rootfs, "tmp"))
	// Not over one that runs.
	if _, err := os.Stat(rootfs + attackerAt); os.IsNotExist(err) {
		raw, err := os.ReadFile(program)
		Must(t, err)
		Must(t, os.WriteFile(rootfs+attackerAt, raw, 0o755))
	}
}

// attackerProgram builds the program, without a library.
func attackerProgram() (string, error) {
	return buildOnce("attacker", func(to string) error { return buildHelper(to, "attacker") })
}

// PID is the process, as the test sees it.
func (a *Attacker) PID() int { return a.pid }

// Mounts returns the mount table of the process.
func (a *Attacker) Mounts() []facts.Mount {
	a.t.Helper()
	return Mounts(a.t, strconv.Itoa(a.pid))
}

// Try has the process do something, and returns the error: see package attacker.
func (a *Attacker) Try(flags uintptr, do string, args ...string) error {
	if err := a.calls.Encode(map[string]any{"Do": do, "Args": args, "Flags": flags}); err != nil {
		return err
	}
	if err := a.out.SetReadDeadline(time.Now().Add(Patience)); err != nil {
		return err
	}
	var answer struct{ Err string }
	if err := a.answers.Decode(&answer); err != nil {
		return err
	}
	if answer.Err != "" {
		return errors.New(answer.Err)
	}
	return nil
}

// Do has the process do something that must succeed.
func (a *Attacker) Do(do string, args ...string) {
	a.t.Helper()
	if err := a.Try(0, do, args...); err != nil {
		a.t.Fatalf("the attacker's %s: %v", do, err)
	}
}

// Mount has the process call mount(2).
func (a *Attacker) Mount(source, target, fsType string, flags uintptr) {
	a.t.Helper()
	if err := a.Try(flags, "mount", source, target, fsType); err != nil {
		a.t.Fatalf("the attacker's mount on %s: %v", target, err)
	}
}

// Unmount has the process call umount2(2), lazily.
func (a *Attacker) Unmount(target string) {
	a.t.Helper()
	if err := a.Try(unix.MNT_DETACH, "umount", target); err != nil {
		a.t.Fatalf("the attacker's umount of %s: %v", target, err)
	}
}

// LockMappings has the process, which has mapped a file (see "map"), hold the lock
// of its mappings for as long as that file does not answer: every process that reads its
// command line waits as long.
func (a *Attacker) LockMappings() {
	a.t.Helper()
	a.Do("lock")
	var reader *exec.Cmd
	Eventually(a.t, "the mappings are locked", func() bool {
		if WaitingThreads(a.pid) < 2 {
			return false
		}
		if reader == nil { // this one shows it
			reader = exec.Command("cat", fmt.Sprintf("/proc/%d/cmdline", a.pid))
			Must(a.t, reader.Start())
			a.t.Cleanup(func() { _ = reader.Process.Kill(); _ = reader.Wait() })
		}
		return State(reader.Process.Pid) == "D"
	})
}
