package nodeserver

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/csi-addons/node-healer/pkg/healer"
	"github.com/csi-addons/node-healer/pkg/printable"
)

func TestErrorsBecomeCodes(t *testing.T) {
	h := &fakeHealer{}
	s := serve(t, testConfig(h))
	for name, tc := range map[string]struct {
		err  error
		code codes.Code
		text string
	}{
		"invalid":               {healer.Invalid("volume_path", "is a %s", "symlink"), codes.InvalidArgument, "volume_path: is a symlink"},
		"not found":             {healer.NotFound("no %s", "such path"), codes.NotFound, "no such path"},
		"busy":                  {&healer.Error{Kind: healer.KindBusy, Text: "since 12:00"}, codes.Aborted, "since 12:00"},
		"secrets refused":       {&healer.Error{Kind: healer.KindUnauthenticated, Text: "login"}, codes.Unauthenticated, "login"},
		"disabled":              {&healer.Error{Kind: healer.KindDisabled, Text: "off"}, codes.Unimplemented, "off"},
		"failed":                {healer.Failed("read the mount table", errors.New("EIO")), codes.Unknown, "read the mount table: EIO"},
		"shutting down":         {fmt.Errorf("heal: %w", healer.ErrShuttingDown), codes.Unavailable, "heal: the server is shutting down"},
		"foreign":               {errors.New("what?"), codes.Unknown, "what?"},
		"wrapped":               {fmt.Errorf("heal: %w", healer.NotFound("gone")), codes.NotFound, "heal: gone"},
		"a status from below":   {healer.Failed("stage", status.Error(codes.Unimplemented, "no")), codes.Unknown, "stage: rpc error: code = Unimplemented desc = no"},
		"a bare status":         {status.Error(codes.Unimplemented, "no"), codes.Unknown, "rpc error: code = Unimplemented desc = no"},
		"our own deadline":      {healer.Failed("probe", context.DeadlineExceeded), codes.Unknown, "probe: context deadline exceeded"},
		"our own cancellation":  {context.Canceled, codes.Unknown, "context canceled"},
		"several lines":         {errors.New("a\nb\x00\xff"), codes.Unknown, `a\nb\x00\xff`},
		"a very long one":       {errors.New(strings.Repeat("é", 4000)), codes.Unknown, strings.Repeat("é", 510) + printable.Ellipsis},
		"a secret in the error": {healer.Failed("login as hunter2", errors.New("hunter2 refused")), codes.Unknown, "login as [redacted]: [redacted] refused"},
	} {
		t.Run(name, func(t *testing.T) {
			h.next(healer.Report{}, tc.err, nil)
			req := goodRequest()
			req.Secrets = map[string]string{"password": "hunter2"}
			_, err := s.healer().NodeHealer(testContext(t), req)
			if got := status.Convert(err); got.Code() != tc.code || got.Message() != tc.text || len(got.Message()) > statusBytes {
				t.Errorf("got %v %q, want %v %q", got.Code(), got.Message(), tc.code, tc.text)
			}
		})
	}
}

func TestCallersEnd(t *testing.T) {
	gone, cancel := context.WithCancel(context.Background())
	cancel()
	late, cancel := context.WithDeadline(context.Background(), time.Now().Add(-time.Second))
	defer cancel()
	for name, tc := range map[string]struct {
		ctx  context.Context
		err  error
		want codes.Code
	}{
		"gone":                      {gone, context.Canceled, codes.Canceled},
		"gone, wrapped":             {gone, healer.Failed("wait", context.Canceled), codes.Canceled},
		"late":                      {late, healer.Failed("wait", context.DeadlineExceeded), codes.DeadlineExceeded},
		"gone, but our deadline":    {gone, context.DeadlineExceeded, codes.Unknown},
		"gone, but another failure": {gone, errors.New("EIO"), codes.Unknown},
		"gone, but a clear answer":  {gone, healer.NotFound("no such path"), codes.NotFound},
	} {
		t.Run(name, func(t *testing.T) {
			if got := status.Code(toStatus(tc.ctx, tc.err, nil)); got != tc.want {
				t.Errorf("got %v, want %v", got, tc.want)
			}
		})
	}
}

func TestServerThatIsOff(t *testing.T) {
	cfg := testConfig(nil)
	cfg.Off = true
	s := serve(t, cfg)
	for _, valid := range []bool{true, false} {
		req := goodRequest()
		if !valid {
			req.Reset()
		}
		if _, err := s.healer().NodeHealer(testContext(t), req); status.Code(err) != codes.Unimplemented {
			t.Errorf("valid request %v: got %v, want UNIMPLEMENTED", valid, err)
		}
	}
}

func TestCallWhileDraining(t *testing.T) {
	h := &fakeHealer{}
	s := serve(t, testConfig(h))
	s.server.calls.drain()
	if _, err := s.healer().NodeHealer(testContext(t), goodRequest()); status.Code(err) != codes.Unavailable || len(h.volumes()) != 0 {
		t.Errorf("got %v", err)
	}
}
