package nodeserver

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/csi-addons/node-healer/pkg/healer"
)

func TestPanicIsUnknown(t *testing.T) {
	for name, value := range map[string]any{
		"a string":        canary,
		"an error":        errors.New(canary),
		"a runtime error": nil,
	} {
		t.Run(name, func(t *testing.T) {
			logged := captureLog(t, "10")
			h := &fakeHealer{during: func(context.Context) {
				if value != nil {
					panic(value)
				}
				var nowhere []int
				_ = nowhere[len(canary)]
			}}
			s := serve(t, testConfig(h))
			req := goodRequest()
			req.Secrets = map[string]string{"k": canary}
			_, err := s.healer().NodeHealer(testContext(t), req)
			if got := status.Convert(err); got.Code() != codes.Unknown || got.Message() != "internal error, see the log of the server" {
				t.Errorf("got %v", got)
			}
			text := logged()
			for _, want := range []string{"goroutine", "fakeHealer", `code="Unknown"`, `volume_id="vol-1"`} {
				if !strings.Contains(text, want) {
					t.Errorf("%q is not in the log:\n%s", want, text)
				}
			}
			if strings.Contains(text, canary) {
				t.Errorf("the log shows the panic's value:\n%s", text)
			}
			if value == nil && !strings.Contains(text, "index out of range") {
				t.Errorf("the runtime's own words are not in the log:\n%s", text)
			}
			// The server lives.
			h.next(healer.Report{}, nil, nil)
			if _, err := s.healer().NodeHealer(testContext(t), req); err != nil {
				t.Errorf("afterwards: %v", err)
			}
		})
	}
}

func TestPanicInAStreamIsUnknown(t *testing.T) {
	captureLog(t, "0")
	noGoroutineLeft(t)
	s := &served{socket: filepath.Join(t.TempDir(), "s", "healer.sock"), ended: make(chan error, 1)}
	l, err := Listen("unix://" + s.socket)
	if err != nil {
		t.Fatal(err)
	}
	panics := grpc.StreamDesc{StreamName: "Panic", ServerStreams: true, Handler: func(any, grpc.ServerStream) error { panic("boom") }}
	s.run(t, testConfig(&fakeHealer{}), l, "unix://"+s.socket, func(server *Server) func() error {
		registrar{server.grpc, peerGuard{allowed: []uint32{uint32(os.Getuid())}, callerOf: localCaller}.admit}.RegisterService(&grpc.ServiceDesc{ServiceName: "test.Panics", HandlerType: (*any)(nil), Streams: []grpc.StreamDesc{panics}}, nil)
		return func() error { return server.Serve(l) }
	})
	stream, err := s.conn.NewStream(testContext(t), &panics, "/test.Panics/Panic")
	if err != nil {
		t.Fatal(err)
	}
	if got := status.Convert(stream.RecvMsg(&emptypb.Empty{})); got.Code() != codes.Unknown || got.Message() != "internal error, see the log of the server" {
		t.Errorf("got %v", got)
	}
}
