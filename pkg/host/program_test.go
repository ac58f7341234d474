package host

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/csi-addons/node-healer/pkg/worker"
	"github.com/csi-addons/node-healer/pkg/workerops"
)

func TestRunProgram(t *testing.T) {
	everyWay(t, func(t *testing.T, cgroups bool) {
		n, root := newNode(t)
		p := shell(`cat; echo "$A $1"; echo err >&2; cat /proc/self/cgroup; env; mkdir -p /sys/fs/cgroup$(sed -n s/^0:://p /proc/self/cgroup)/inner; exit 7`)
		p.Args = append(p.Args, "sh", "arg")
		p.Env, p.Stdin = []string{"A=env"}, []byte("key=value\n")
		r, err := n.RunProgram(within(t, time.Minute), p)
		done(t, err)
		text := string(r.Output)
		if r.Code != 7 || r.Cut || r.Elapsed <= 0 || !strings.HasPrefix(text, "key=value\nenv arg\nerr\n") {
			t.Errorf("%+v: %s", r, text)
		}
		if got := strings.Contains(text, "/node-healer-program-"); got != cgroups {
			t.Errorf("its cgroup:\n%s", text)
		}
		if strings.Contains(text, "HOST_TEST_SERVES") {
			t.Errorf("it inherited an environment:\n%s", text)
		}
		noneLeft(t, root)
	})
}

func TestRunProgramThatCannotStart(t *testing.T) {
	realKernel(t)
	n, root := newNode(t)
	if _, err := n.RunProgram(within(t, time.Minute), Program{Path: root + "/none"}); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no such program: %v", err)
	}
	done(t, os.WriteFile(root+"/text", []byte("text"), 0o600))
	if _, err := n.RunProgram(within(t, time.Minute), Program{Path: root + "/text"}); !errors.Is(err, os.ErrPermission) {
		t.Errorf("not executable: %v", err)
	}
	noneLeft(t, root)
}

func TestRunProgramThatWritesWithoutEnd(t *testing.T) {
	realKernel(t)
	n, root := newNode(t)
	r, err := n.RunProgram(within(t, time.Minute), shell("head -c 3000000 /dev/zero; kill -9 $$"))
	if err != nil || r.Code != -1 || len(r.Output) != 4096 || !r.Cut {
		t.Errorf("code %d, %d bytes, cut %v, %v", r.Code, len(r.Output), r.Cut, err)
	}
	noneLeft(t, root)
}

// Nothing acts after a program has ended, its deadline has passed, its caller has left,
// or any one of the processes that watch over it was killed.
func TestNothingOutlivesAProgram(t *testing.T) {
	everyWay(t, func(t *testing.T, _ bool) {
		n, root := newNode(t)
		run := func(ctx context.Context, file, script string) chan error {
			ended := make(chan error, 1)
			go func() {
				_, err := n.RunProgram(ctx, doubleForks(root+"/"+file, script))
				ended <- err
			}()
			return ended
		}
		ended := run(within(t, time.Minute), "ended", "until test -e "+root+"/ended.began; do sleep 0.02; done")
		if err := <-ended; err != nil {
			t.Error("one that ended:", err)
		}
		noneLeft(t, root)
		late := run(within(t, actsAfter/2), "late", forLong)
		if err := <-late; !errors.Is(err, context.DeadlineExceeded) {
			t.Error("one that was late:", err)
		}
		noneLeft(t, root)
		ctx, leave := context.WithCancel(within(t, time.Minute))
		left := run(ctx, "left", forLong)
		began(t, root+"/left")
		leave()
		if err := <-left; !errors.Is(err, context.Canceled) {
			t.Error("one whose caller left:", err)
		}
		noneLeft(t, root)
		for i, who := range []string{"the worker", "the process beside it"} {
			killed := run(within(t, time.Minute), strconv.Itoa(i), forLong)
			began(t, root+"/"+strconv.Itoa(i))
			pid := workerOf(t)
			if i == 1 {
				pid = childOf(t, pid)
			}
			done(t, unix.Kill(pid, unix.SIGKILL))
			if err := <-killed; err == nil {
				t.Errorf("%s was killed, and the program succeeded", who)
			}
		}
		time.Sleep(actsAfter + actsAfter/2)
		noneLeft(t, root)
		for _, file := range []string{"ended", "late", "left", "0", "1"} {
			if exists(root + "/" + file) {
				t.Errorf("%s acted afterwards", file)
			}
		}
	})
}

// Children that each start the next one and end are not lost sight of.
func TestRunProgramThatForksWithoutEnd(t *testing.T) {
	everyWay(t, func(t *testing.T, _ bool) {
		n, root := newNode(t)
		r, err := n.RunProgram(within(t, time.Minute), shell("f() { f & }; f; exit 3 # "+root))
		if err != nil || r.Code != 3 {
			t.Errorf("%+v, %v", r, err)
		}
		noneLeft(t, root)
	})
}

// When the server is killed nothing acts any more either.
func TestNothingOutlivesTheServer(t *testing.T) {
	everyWay(t, func(t *testing.T, _ bool) {
		root := t.TempDir()
		server := exec.Command("/proc/self/exe")
		server.Env = append(os.Environ(), testRuns+"="+doubleForks(root+"/f", forLong).Args[1])
		done(t, server.Start())
		began(t, root+"/f")
		done(t, server.Process.Kill())
		_ = server.Wait()
		noneLeft(t, root)
		time.Sleep(actsAfter + actsAfter/2)
		if exists(root + "/f") {
			t.Error("it acted afterwards")
		}
	})
}

// testRuns has a script for a server that is killed meanwhile.
const testRuns = "HOST_TEST_RUNS"

func runUntilKilled(script string) {
	pool, err := worker.NewPool(worker.Config{
		Binary: "/proc/self/exe", Env: []string{"HOST_TEST_SERVES=1"}, Max: 1, Idle: 1, KillWait: time.Minute,
	})
	if err != nil {
		panic(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	_, err = worker.Call(ctx, pool, workerops.RunProgram, workerops.ProgramQuery{Path: "/bin/sh", Args: []string{"-c", script}})
	panic(fmt.Sprint("not killed: ", err))
}

// Where both processes that watch over a program were killed, the next one that runs
// ends what is left in the cgroup.
func TestNextProgramEndsWhatIsLeft(t *testing.T) {
	needsCgroups(t)
	n, root := newNode(t)
	ended := make(chan error, 1)
	go func() {
		_, err := n.RunProgram(within(t, time.Minute), doubleForks(root+"/f", forLong))
		ended <- err
	}()
	began(t, root+"/f")
	pid := workerOf(t)
	beside := childOf(t, pid)
	done(t, unix.Kill(pid, unix.SIGSTOP)) // or one of them sees the other die
	done(t, unix.Kill(beside, unix.SIGKILL))
	done(t, unix.Kill(pid, unix.SIGKILL))
	if err := <-ended; err == nil {
		t.Error("both were killed, and the program succeeded")
	}
	_, err := n.RunProgram(within(t, time.Minute), shell("true"))
	done(t, err)
	noneLeft(t, root)
	time.Sleep(actsAfter + actsAfter/2)
	if exists(root + "/f") {
		t.Error("it acted afterwards")
	}
}
