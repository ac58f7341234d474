package worker_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/csi-addons/node-healer/internal/operation"
	"github.com/csi-addons/node-healer/internal/worker"
)

const workerEnv = "WORKER_TEST_SERVES=1"

// TestMain makes the test binary its own worker program.
func TestMain(m *testing.M) {
	if os.Getenv("WORKER_TEST_SERVES") == "" {
		os.Exit(m.Run())
	}
	if err := operation.Serve(whoami, once, doubt, hang, listen, deaf, leave, fail); err != nil {
		fmt.Fprintln(os.Stderr, "worker of the test:", err)
		os.Exit(1)
	}
}

var (
	// whoami gives the worker's process id, after a while.
	whoami = operation.Define("whoami", operation.Pooled, pidAfter)
	once   = operation.Define("once", operation.Spent, pidAfter)
	doubt  = operation.Define("doubt", operation.Doubtful, pidAfter)
	// hang never returns.
	hang = operation.Define("hang", operation.Pooled, func(string) (int, error) { time.Sleep(time.Hour); return 0, nil })
	// listen reads a FIFO, and answers with the worker's process id when somebody has written there.
	listen = operation.Define("listen", operation.Pooled, readFrom)
	// deaf stops its own process: only SIGKILL reaches it.
	deaf = operation.Define("deaf", operation.Pooled, func(string) (int, error) {
		return 0, unix.Kill(os.Getpid(), unix.SIGSTOP)
	})
	leave = operation.Define("leave", operation.Pooled, func(code int) (int, error) { os.Exit(code); return 0, nil })
	fail  = operation.Define("fail", operation.Pooled, failAs)
)

func pidAfter(d time.Duration) (int, error) {
	time.Sleep(d)
	return os.Getpid(), nil
}

func readFrom(fifo string) (int, error) {
	fd, err := unix.Open(fifo, unix.O_RDWR, 0)
	if err != nil {
		return 0, err
	}
	defer unix.Close(fd)
	_, err = unix.Read(fd, make([]byte, 1))
	return os.Getpid(), err
}

// newFIFO makes a FIFO in which nobody writes until write is called.
func newFIFO(t *testing.T) (path string, write func()) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "fifo")
	if err := unix.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() })
	return path, func() {
		if _, err := f.Write([]byte{0}); err != nil {
			t.Error(err)
		}
	}
}

func failAs(how string) (int, error) {
	switch how {
	case "errno":
		return 1, &fs.PathError{Op: "open", Path: "/x", Err: unix.ESTALE}
	case "refused":
		return 1, fmt.Errorf("%w: not ours", operation.ErrRefused)
	case "both":
		return 1, fmt.Errorf("%w; taking it off: %w", operation.ErrRefused, unix.EBUSY)
	default:
		return 1, errors.New("plain")
	}
}

// newPool makes a pool that the test's end closes; nothing may be left then.
func newPool(t *testing.T, change ...func(*worker.Config)) *worker.Pool {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cfg := worker.Config{
		Binary: self, Env: []string{workerEnv, "GOMAXPROCS=1", "GORACE=atexit_sleep_ms=0"},
		Max: 4, Idle: 2, Grow: time.Millisecond, KillWait: 10 * time.Second,
	}
	for _, c := range change {
		c(&cfg)
	}
	before := takeStock(t)
	p := worker.NewPool(cfg)
	t.Cleanup(func() {
		if err := p.Close(within(t, time.Minute)); err != nil {
			t.Error("close:", err)
		}
		if s := p.Stats(); s.Living != 0 || s.Idle != 0 || s.Abandoned != 0 {
			t.Errorf("after Close the pool has %+v", s)
		}
		before.compare(t)
	})
	return p
}

// within returns a context for one call.
func within(t *testing.T, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), d)
	t.Cleanup(cancel)
	return ctx
}

// mustCall returns the process that answered.
func mustCall(t *testing.T, p *worker.Pool, op operation.Op[time.Duration, int]) int {
	t.Helper()
	pid, err := worker.Call(within(t, time.Minute), p, op, 0)
	if err != nil {
		t.Fatalf("%s: %v", op.Name(), err)
	}
	return pid
}

func gone(pid int) bool { return errors.Is(unix.Kill(pid, 0), unix.ESRCH) }

// stock is what a pool could leave behind.
type stock struct{ fds, goroutines int }

func takeStock(t *testing.T) stock {
	t.Helper()
	fds, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return stock{len(fds), runtime.NumGoroutine()}
}

func (before stock) compare(t *testing.T) {
	t.Helper()
	if pid, err := unix.Wait4(-1, nil, unix.WNOHANG, nil); !errors.Is(err, unix.ECHILD) {
		t.Errorf("a child process is left (wait4: %d, %v)", pid, err)
	}
	var now stock
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		if now = takeStock(t); now.fds <= before.fds && now.goroutines <= before.goroutines {
			return
		}
	}
	t.Errorf("%d descriptors and %d goroutines, before were %d and %d", now.fds, now.goroutines, before.fds, before.goroutines)
}
