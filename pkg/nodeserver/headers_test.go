package nodeserver

import (
	"bytes"
	"io"
	"net"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/csi-addons/node-healer/pkg/api/forwarded"
	"github.com/csi-addons/node-healer/pkg/api/healerpb"
)

// TestEndedCallsKeepNothing begins thousands of calls, each with headers of 4 KiB, that end at
// once: nothing may keep their headers.
func TestEndedCallsKeepNothing(t *testing.T) {
	const calls, mostBytes = 2_000, 512 << 10
	for name, headers := range map[string][][2]string{
		"without time":             {{"grpc-timeout", "0n"}, {forwarded.Caller, "jane"}, {forwarded.Verb, forwarded.VerbHeal}},
		"refused, with much time":  {{"grpc-timeout", "9999H"}},
		"given up, with much time": {{"grpc-timeout", "9999H"}, {forwarded.Caller, "jane"}, {forwarded.Verb, forwarded.VerbHeal}},
	} {
		t.Run(name, func(t *testing.T) {
			s := serveForwarded(t, &fakeHealer{})
			conn, err := net.Dial("unix", s.socket)
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			ended, acks := make(chan uint32, calls), make(chan struct{}, 1)
			before := heapBytes()
			go readEnds(conn, ended, acks)
			if _, err := io.WriteString(conn, http2.ClientPreface); err != nil {
				t.Fatal(err)
			}
			out := http2.NewFramer(conn, nil)
			_ = out.WriteSettings()
			<-acks
			_ = out.WriteSettingsAck()
			var block bytes.Buffer
			encoder := hpack.NewEncoder(&block)
			encoder.SetMaxDynamicTableSize(0)
			for i := range uint32(calls) {
				block.Reset()
				for _, h := range append([][2]string{
					{":method", "POST"},
					{":scheme", "http"},
					{":authority", "x"},
					{":path", healerpb.HealerNode_NodeHealer_FullMethodName},
					{"content-type", "application/grpc"},
					{"te", "trailers"},
					{"x-large", strings.Repeat("x", 4<<10)},
				}, headers...) {
					_ = encoder.WriteField(hpack.HeaderField{Name: h[0], Value: h[1]})
				}
				id := 2*i + 1
				if err := out.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: block.Bytes(), EndHeaders: true}); err != nil {
					t.Fatal(err)
				}
				if name == "given up, with much time" {
					_ = out.WriteRSTStream(id, http2.ErrCodeCancel)
					continue
				}
				_ = out.WriteData(id, true, make([]byte, 5)) // an empty message
				if got, open := <-ended; !open || got != id {
					t.Fatalf("call %d: stream %d ended, %t", id, got, open)
				}
			}
			_ = out.WritePing(false, [8]byte{})
			<-acks // all that was sent before has been read
			if grown := heapBytes() - before; grown > mostBytes {
				t.Errorf("%d calls keep %d bytes", calls, grown)
			}
		})
	}
}

// readEnds sends the streams that end, and a word for the server's settings and for each answer to
// a ping.
func readEnds(conn net.Conn, ended chan<- uint32, acks chan<- struct{}) {
	defer close(ended)
	in := http2.NewFramer(io.Discard, conn)
	for {
		f, err := in.ReadFrame()
		if err != nil {
			return
		}
		switch f := f.(type) {
		case *http2.SettingsFrame:
			if !f.IsAck() {
				acks <- struct{}{}
			}
		case *http2.PingFrame:
			if f.IsAck() {
				acks <- struct{}{}
			}
		case *http2.HeadersFrame:
			if f.StreamEnded() {
				ended <- f.StreamID
			}
		}
	}
}

func heapBytes() int64 {
	runtime.GC()
	runtime.GC() // sync.Pool keeps for one
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}
