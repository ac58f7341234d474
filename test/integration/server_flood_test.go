package integration

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"golang.org/x/sys/unix"

	"github.com/csi-addons/node-healer/pkg/api/forwarded"
	"github.com/csi-addons/node-healer/pkg/api/healerpb"
	"github.com/csi-addons/node-healer/test/harness"
)

// flood is what a flood sends, and how much the server may take for it.
type flood struct{ frame, mostMiB int }

// TestFloodByTheGatewaysUser floods the sockets of the gateway's user, as a process that
// took the gateway over would: thousands of connections, on each as many calls as the
// server takes, and all of them sent by half.
func TestFloodByTheGatewaysUser(t *testing.T) {
	const connections, answers = 2_000, 100
	floods := map[string]flood{
		"large frames": {16 << 10, 60},
	}
	if harness.Full() {
		// Each frame is a buffer of some 60 bytes until its message is complete or late:
		// what they come to depends on the processor's speed.
		floods["frames of one byte"] = flood{1, 160}
	}
	for name, flooded := range floods {
		t.Run(name, func(t *testing.T) {
			c := harness.NewCgroup(t, "memory")
			n := harness.NewNode(t, "--standalone")
			n.Binary = harness.Released(t)
			g := harness.NewGateway(n)
			g.ServeMetrics()
			n.Start()
			c.Limit(512 << 20)
			c.Take(n.PID())
			v := n.NewVolume("ext4", "besieged")
			n.Expect("healthy", v.Request())
			idle := peakMiB(t, n.PID())

			var sent sync.WaitGroup
			var opened []net.Conn
			defer func() {
				for _, conn := range opened {
					_ = conn.Close()
				}
				sent.Wait()
			}()
			gateway := strings.TrimPrefix(g.Socket(), "unix://")
			metrics := filepath.Join(filepath.Dir(gateway), "metrics.sock")
			for range connections {
				call, scrape := dialAs(t, harness.GatewayUID, gateway), dialAs(t, harness.GatewayUID, metrics)
				opened = append(opened, call, scrape)
				sent.Go(func() { sendHalves(call, flooded.frame) })
				sent.Go(func() { _, _ = fmt.Fprintf(scrape, "GET /metrics HTTP/1.1\r\nX: %s", strings.Repeat("x", 11<<10)) })
			}
			for range answers {
				n.Expect("healthy", v.Request())
			}
			took := peakMiB(t, n.PID())
			t.Logf("%d connections; root was answered %d times; the server took %d MiB before and %d at most", len(opened), answers, idle, took)
			if took > flooded.mostMiB {
				t.Errorf("the server took %d MiB, want %d at most", took, flooded.mostMiB)
			}
			if c.Starved() > 0 {
				t.Error("the kernel ended a process for lack of memory")
			}
		})
	}
}

// dialAs connects with the effective user and group of one thread, which ends with it.
func dialAs(t *testing.T, id int, path string) net.Conn {
	t.Helper()
	type dialed struct {
		conn net.Conn
		err  error
	}
	done := make(chan dialed)
	go func() {
		runtime.LockOSThread() // and never unlocks: the thread is not used again
		// The system calls themselves: those of package syscall are for all threads.
		_, _, errno := unix.RawSyscall(unix.SYS_SETRESGID, ^uintptr(0), uintptr(id), ^uintptr(0))
		if errno == 0 {
			_, _, errno = unix.RawSyscall(unix.SYS_SETRESUID, ^uintptr(0), uintptr(id), ^uintptr(0))
		}
		if errno != 0 {
			done <- dialed{err: errno}
			return
		}
		fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
		if err == nil {
			for err = unix.EAGAIN; errors.Is(err, unix.EAGAIN); { // the backlog is full
				if err = unix.Connect(fd, &unix.SockaddrUnix{Name: path}); errors.Is(err, unix.EAGAIN) {
					time.Sleep(time.Millisecond)
				}
			}
		}
		if err != nil {
			done <- dialed{err: fmt.Errorf("connect to %s: %w", path, err)}
			return
		}
		file := os.NewFile(uintptr(fd), path)
		conn, err := net.FileConn(file)
		done <- dialed{conn, errors.Join(err, file.Close())}
	}()
	d := <-done
	harness.Must(t, d.err)
	return d.conn
}

// sendHalves begins as many calls on a connection as the server lets it, and sends of
// each message all but the last byte. It begins others in place of those that end.
func sendHalves(conn net.Conn, frame int) {
	const message = 60 << 10
	var mu sync.Mutex // of the framer's writes
	out := http2.NewFramer(conn, nil)
	in := http2.NewFramer(io.Discard, conn)
	if _, err := io.WriteString(conn, http2.ClientPreface); err != nil {
		return
	}
	_ = out.WriteSettings()
	// Calls in place of those that the server ended.
	ended := make(chan struct{}, 1<<16)
	streams := make(chan uint32, 1)
	go func() {
		defer close(ended)
		for {
			f, err := in.ReadFrame()
			if err != nil {
				return
			}
			mu.Lock()
			switch f := f.(type) {
			case *http2.SettingsFrame:
				if most, ok := f.Value(http2.SettingMaxConcurrentStreams); ok {
					streams <- most
				}
				if !f.IsAck() {
					_ = out.WriteSettingsAck()
				}
			case *http2.PingFrame:
				if !f.IsAck() {
					_ = out.WritePing(true, f.Data)
				}
			case *http2.HeadersFrame:
				if f.StreamEnded() {
					ended <- struct{}{}
				}
			case *http2.RSTStreamFrame:
				ended <- struct{}{}
			}
			mu.Unlock()
		}
	}()
	var most uint32
	select {
	case most = <-streams:
	case <-ended:
		return
	}
	var id uint32 = 1
	part := make([]byte, frame)
	var headers bytes.Buffer
	encoder := hpack.NewEncoder(&headers)
	for range most {
		ended <- struct{}{}
	}
	for range ended {
		headers.Reset()
		for _, h := range [][2]string{
			{":method", "POST"},
			{":scheme", "http"},
			{":authority", "x"},
			{":path", healerpb.HealerNode_NodeHealer_FullMethodName},
			{"content-type", "application/grpc"},
			{"te", "trailers"},
			{forwarded.Caller, "YQ=="},
			{forwarded.Verb, forwarded.VerbHeal},
		} {
			_ = encoder.WriteField(hpack.HeaderField{Name: h[0], Value: h[1]})
		}
		mu.Lock()
		err := out.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: headers.Bytes(), EndHeaders: true})
		if err == nil {
			err = out.WriteData(id, false, binary.BigEndian.AppendUint32([]byte{0}, message))
		}
		mu.Unlock()
		var batch bytes.Buffer
		frames := http2.NewFramer(&batch, nil)
		for sent := 0; err == nil && sent+frame < message; sent += frame {
			_ = frames.WriteData(id, false, part)
			if batch.Len() > 32<<10 || sent+2*frame >= message {
				mu.Lock()
				_, err = conn.Write(batch.Bytes())
				mu.Unlock()
				batch.Reset()
			}
		}
		if err != nil {
			return
		}
		id += 2
	}
}

// peakMiB is the most memory that a process has taken so far.
func peakMiB(t *testing.T, pid int) int {
	t.Helper()
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	harness.Must(t, err)
	_, line, _ := strings.Cut(string(raw), "\nVmHWM:")
	kib, err := strconv.Atoi(strings.Fields(line)[0])
	harness.Must(t, err)
	return kib >> 10
}
