package nodeserver

import (
	"bytes"
	"context"
	"flag"
	"io"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/grpclog"
	"k8s.io/klog/v2"

	"github.com/csi-addons/node-healer/pkg/api/healerpb"
	"github.com/csi-addons/node-healer/pkg/healer"
)

// grpcLog holds all that grpc itself says, of every test.
var grpcLog lockedBuffer

func TestMain(m *testing.M) {
	grpclog.SetLoggerV2(grpclog.NewLoggerV2WithVerbosity(&grpcLog, &grpcLog, &grpcLog, 99))
	if err := logTo(io.Discard, "0"); err != nil {
		panic(err)
	}
	os.Exit(m.Run())
}

type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// logTo sends klog, at the given verbosity, to w and nowhere else.
func logTo(w io.Writer, verbosity string) error {
	var flags flag.FlagSet
	klog.InitFlags(&flags)
	for name, value := range map[string]string{
		"v": verbosity, "logtostderr": "false", "alsologtostderr": "false", "stderrthreshold": "FATAL", "one_output": "true",
	} {
		if err := flags.Set(name, value); err != nil {
			return err
		}
	}
	klog.SetOutput(w)
	return nil
}

// captureLog returns the log of a test from here on.
func captureLog(t *testing.T, verbosity string) func() string {
	t.Helper()
	var b lockedBuffer
	if err := logTo(&b, verbosity); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := logTo(io.Discard, "0"); err != nil {
			t.Error(err)
		}
	})
	return func() string {
		klog.Flush()
		return b.String()
	}
}

// fakeHealer keeps what it was asked and answers with what it was given.
type fakeHealer struct {
	mu    sync.Mutex
	asked []healer.Volume
	// checked has the volumes that were only to be looked at.
	checked []healer.Volume
	report  healer.Report
	err     error
	// during runs inside Heal.
	during func(context.Context)
}

func (f *fakeHealer) Heal(ctx context.Context, v healer.Volume) (healer.Report, error) {
	f.mu.Lock()
	f.asked = append(f.asked, v)
	report, err, during := f.report, f.err, f.during
	f.mu.Unlock()
	if during != nil {
		during(ctx)
	}
	return report, err
}

func (f *fakeHealer) Check(ctx context.Context, v healer.Volume) (healer.Report, error) {
	f.mu.Lock()
	f.checked = append(f.checked, v)
	report, err, during := f.report, f.err, f.during
	f.mu.Unlock()
	if during != nil {
		during(ctx)
	}
	return report, err
}

// next sets what the next calls get; those that run already keep theirs.
func (f *fakeHealer) next(report healer.Report, err error, during func(context.Context)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.report, f.err, f.during = report, err, during
}

func (f *fakeHealer) volumes() []healer.Volume {
	f.mu.Lock()
	defer f.mu.Unlock()
	return append([]healer.Volume(nil), f.asked...)
}

const testRoot = "/var/lib/kubelet"

func testConfig(h healer.Engine) Config {
	return Config{
		Healer:      h,
		Name:        "healer.example.com",
		Version:     "v1.2.3",
		Roots:       []string{testRoot},
		AllowedUIDs: []uint32{uint32(os.Getuid())},
	}
}

// served is a running server and a client of it.
type served struct {
	server *Server
	socket string
	conn   *grpc.ClientConn
	ended  chan error
}

func (s *served) healer() healerpb.HealerNodeClient { return healerpb.NewHealerNodeClient(s.conn) }

func serve(t *testing.T, cfg Config) *served {
	t.Helper()
	noGoroutineLeft(t)
	s := &served{socket: filepath.Join(t.TempDir(), "s", "healer.sock"), ended: make(chan error, 1)}
	l, err := Listen("unix://" + s.socket)
	if err != nil {
		t.Fatal(err)
	}
	s.run(t, cfg, l, "unix://"+s.socket)
	return s
}

// run serves on the listener, by Serve unless another way is given.
func (s *served) run(t *testing.T, cfg Config, l net.Listener, target string, other ...func(*Server) func() error) {
	t.Helper()
	var err error
	if s.server, err = New(cfg); err != nil {
		t.Fatal(err)
	}
	serve := func() error { return s.server.Serve(l) }
	for _, o := range other {
		serve = o(s.server)
	}
	go func() { s.ended <- serve() }()
	if s.conn, err = grpc.NewClient(target, grpc.WithTransportCredentials(insecure.NewCredentials())); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = s.conn.Close()
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		_ = s.server.Stop(ctx)
		if err := <-s.ended; err != nil {
			t.Errorf("Serve: %v", err)
		}
	})
}

// noGoroutineLeft compares the number of goroutines at the end of the test,
// when everything else was cleaned up, with the number now.
func noGoroutineLeft(t *testing.T) {
	t.Helper()
	before := runtime.NumGoroutine()
	t.Cleanup(func() {
		for deadline := time.Now().Add(time.Minute); runtime.NumGoroutine() > before; time.Sleep(5 * time.Millisecond) {
			if time.Now().After(deadline) {
				stacks := make([]byte, 1<<20)
				t.Errorf("%d goroutines before, %d after:\n%s", before, runtime.NumGoroutine(), stacks[:runtime.Stack(stacks, true)])
				return
			}
		}
	})
}

func testContext(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

func goodRequest() *healerpb.NodeHealerRequest {
	return &healerpb.NodeHealerRequest{
		VolumeId:          "vol-1",
		VolumePath:        testRoot + "/pods/1/volumes/kubernetes.io~csi/pv/mount",
		StagingTargetPath: testRoot + "/plugins/kubernetes.io/csi/d/h/globalmount",
	}
}
