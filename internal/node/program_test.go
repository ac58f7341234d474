package node

import (
	"context"
	"errors"
	"os"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/csi-addons/node-healer/internal/ops"
	"github.com/csi-addons/node-healer/internal/worker"
	"github.com/csi-addons/node-healer/pkg/facts"
)

func TestRunProgram(t *testing.T) {
	realKernel(t)
	n, root := newNode(t)
	p := shell(`cat; echo "$A $1"; echo err >&2; ulimit -c; env; exit 7 # ` + root)
	p.Args = append(p.Args, "sh", "arg")
	p.Env, p.Stdin = []string{"A=env"}, []byte("key=value\n")
	r, err := n.RunProgram(within(t, time.Minute), p)
	done(t, err)
	text := string(r.Output)
	if r.Code != 7 || r.Cut || !strings.HasPrefix(text, "key=value\nenv arg\nerr\n0\n") {
		t.Errorf("%+v: %s", r, text)
	}
	if strings.Contains(text, "HOST_TEST_SERVES") {
		t.Errorf("it inherited an environment:\n%s", text)
	}
	noneLeft(t, root)
	p = shell("env")
	p.Env = nil
	if r, err = n.RunProgram(within(t, time.Minute), p); err != nil || strings.Contains(string(r.Output), "HOST_TEST_SERVES") {
		t.Errorf("without an environment it inherited one: %v\n%s", err, r.Output)
	}
}

// What a program does not read of its input, more than a pipe takes, keeps nobody waiting.
func TestRunProgramThatDoesNotRead(t *testing.T) {
	realKernel(t)
	n, _ := newNode(t)
	p := shell("echo over")
	p.Stdin = make([]byte, 1<<20)
	if r, err := n.RunProgram(within(t, time.Minute), p); err != nil || r.Code != 0 || string(r.Output) != "over\n" || r.Cut {
		t.Errorf("%+v, %v", r, err)
	}
}

func TestRunProgramThatCannotStart(t *testing.T) {
	realKernel(t)
	n, root := newNode(t)
	if _, err := n.RunProgram(within(t, time.Minute), facts.Program{Path: root + "/none"}); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no such program: %v", err)
	}
	done(t, os.WriteFile(root+"/text", []byte("text"), 0o600))
	if _, err := n.RunProgram(within(t, time.Minute), facts.Program{Path: root + "/text"}); !errors.Is(err, os.ErrPermission) {
		t.Errorf("not executable: %v", err)
	}
}

func TestRunProgramThatWritesWithoutEnd(t *testing.T) {
	realKernel(t)
	n, root := newNode(t)
	r, err := n.RunProgram(within(t, time.Minute), shell("head -c 3000000 /dev/zero; kill -9 $$ # "+root))
	if err != nil || r.Code != -1 || len(r.Output) != 4096 || !r.Cut {
		t.Errorf("code %d, %d bytes, cut %v, %v", r.Code, len(r.Output), r.Cut, err)
	}
	noneLeft(t, root)
}

// What a program started and left running in its group is killed when it ends, at its
// deadline, and by a worker that lives on to say so.
func TestGroupOfAProgramIsKilled(t *testing.T) {
	realKernel(t)
	n, root := newNode(t)
	background := "sh -c 'sleep 1000; echo " + root + "' & "
	if r, err := n.RunProgram(within(t, time.Minute), shell(background+"echo over")); err != nil || string(r.Output) != "over\n" {
		t.Errorf("one that ended: %+v, %v", r, err)
	}
	noneLeft(t, root)
	late := shell(background + "sleep 1000")
	late.Deadline = time.Now().Add(time.Second)
	if r, err := worker.Call(within(t, time.Minute), n.cfg.Pool, ops.RunProgram, late); err != nil || !r.Late {
		t.Errorf("one that was late: %+v, %v", r, err)
	}
	noneLeft(t, root)
	eventually(t, "the worker of one that is late ends it in time", func() bool {
		_, err := n.RunProgram(within(t, 2*time.Second), shell("sleep 1000"))
		if err == nil {
			t.Fatal("no error")
		}
		return errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, worker.ErrTimeout)
	})
}

// A child with a session of its own has left the group. It keeps no caller waiting,
// though it has the outputs open.
func TestProgramThatLeavesADaemon(t *testing.T) {
	realKernel(t)
	n, root := newNode(t)
	r, err := n.RunProgram(within(t, time.Minute), shell("(setsid sh -c 'echo $$ >"+root+"/pid; sleep 1000' &); until test -s "+root+"/pid; do :; done; echo over"))
	if err != nil || string(r.Output) != "over\n" || !r.Cut {
		t.Errorf("%+v, %v", r, err)
	}
	raw, err := os.ReadFile(root + "/pid")
	done(t, err)
	leader, err := strconv.Atoi(strings.TrimSpace(string(raw)))
	done(t, err)
	done(t, unix.Kill(-leader, unix.SIGKILL))
}

// That its outputs stay open costs a program that ended in time no answer.
func TestProgramThatLeavesADaemonBeforeItsEnd(t *testing.T) {
	realKernel(t)
	n, root := newNode(t)
	eventually(t, "the program ends in time", func() bool {
		r, err := n.RunProgram(within(t, 2*time.Second), shell("(setsid sleep 1000 & echo $! >"+root+"/pid); echo over"))
		if raw, readErr := os.ReadFile(root + "/pid"); readErr == nil {
			if leader, parseErr := strconv.Atoi(strings.TrimSpace(string(raw))); parseErr == nil {
				_ = unix.Kill(leader, unix.SIGKILL)
			}
		}
		return err == nil && string(r.Output) == "over\n" && r.Cut
	})
}

// The kernel kills a program whose worker is killed.
func TestProgramDiesWithItsWorker(t *testing.T) {
	realKernel(t)
	n, root := newNode(t)
	ctx, leave := context.WithCancel(within(t, time.Minute))
	left := make(chan error, 1)
	go func() {
		_, err := n.RunProgram(ctx, shell("echo >"+root+"/began; while :; do sleep 0.1; done # "+root))
		left <- err
	}()
	eventually(t, "it began", func() bool { return exists(root + "/began") })
	leave()
	if err := <-left; !errors.Is(err, context.Canceled) {
		t.Error("its caller left:", err)
	}
	noneLeft(t, root)
}

// A program of the image finds the server's files, one of the host the host's.
func TestWhereAProgramRuns(t *testing.T) {
	realKernel(t)
	dir := t.TempDir()
	done(t, os.WriteFile(dir+"/where", []byte("image"), 0o600))
	theHost := namespaceWith(t, dir, func() { done(t, os.WriteFile(dir+"/where", []byte("host"), 0o600)) })
	n, _ := newNode(t, func(c *Config) { c.Pool = newPool(t, time.Minute, func(w *worker.Config) { w.Namespace = theHost }) })
	for _, onHost := range []bool{false, true} {
		p := shell("cat " + dir + "/where; echo; readlink /proc/self/cwd; ls /proc/self/fd")
		p.OnHost = onHost
		r, err := n.RunProgram(within(t, time.Minute), p)
		want := map[bool]string{true: "host", false: "image"}[onHost] + "\n/\n0\n1\n2\n3\n" // 3 is the directory
		if err != nil || string(r.Output) != want {
			t.Errorf("on the host %v: %q, want %q, %v", onHost, r.Output, want, err)
		}
	}
}

// namespaceWith returns a mount namespace in which a directory is another one.
func namespaceWith(t *testing.T, dir string, fill func()) (ns *os.File) {
	t.Helper()
	made := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // and ended with the goroutine
		err := unix.Unshare(unix.CLONE_FS | unix.CLONE_NEWNS)
		if err == nil {
			err = unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, "")
		}
		if err == nil {
			err = unix.Mount("none", dir, "tmpfs", 0, "")
		}
		if err == nil {
			fill()
			ns, err = os.Open("/proc/thread-self/ns/mnt")
		}
		made <- err
	}()
	done(t, <-made)
	t.Cleanup(func() { done(t, ns.Close()) })
	return ns
}
