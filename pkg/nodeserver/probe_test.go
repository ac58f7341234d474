package nodeserver

import (
	"context"
	"net"
	"os"
	"strings"
	"testing"
	"time"
)

func TestProbeSocket(t *testing.T) {
	entered, release := make(chan struct{}), make(chan struct{})
	s := serve(t, testConfig(&fakeHealer{during: func(context.Context) { close(entered); <-release }}))
	if err := ProbeSocket(testContext(t), "unix://"+s.socket); err != nil {
		t.Error(err)
	}
	// While the last call comes to its end the server is alive, and serves no more.
	answered := make(chan error, 1)
	go func() {
		_, err := s.healer().NodeHealer(testContext(t), goodRequest())
		answered <- err
	}()
	<-entered
	s.server.health.Shutdown()
	if err := ProbeSocket(testContext(t), "unix://"+s.socket); err == nil || !strings.Contains(err.Error(), "NOT_SERVING") {
		t.Errorf("while it stops: %v", err)
	}
	close(release)
	if err := <-answered; err != nil {
		t.Error(err)
	}
}

// TestProbeByOneWhoMayNotCall: kubelet's probes run as root, and --allowed-uids may name others only.
func TestProbeByOneWhoMayNotCall(t *testing.T) {
	cfg := testConfig(&fakeHealer{})
	cfg.AllowedUIDs = []uint32{uint32(os.Getuid()) + 1}
	if err := ProbeSocket(testContext(t), "unix://"+serve(t, cfg).socket); err != nil {
		t.Error(err)
	}
}

func TestProbeOfNobody(t *testing.T) {
	noGoroutineLeft(t)
	silent := t.TempDir() + "/100%?#s"
	l, err := net.Listen("unix", silent)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	for name, endpoint := range map[string]string{
		"nobody there":         "unix://" + t.TempDir() + "/s",
		"one that is silent":   "unix://" + silent,
		"no endpoint of ours":  "tcp://127.0.0.1:1",
		"no absolute endpoint": "unix:s",
	} {
		ctx, cancel := context.WithTimeout(context.Background(), 200*time.Millisecond)
		if err := ProbeSocket(ctx, endpoint); err == nil {
			t.Errorf("%s: it is said to serve", name)
		}
		cancel()
	}
}
