package nodeserver

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/csi-addons/node-healer/internal/printable"
	"github.com/csi-addons/node-healer/pkg/api"
	"github.com/csi-addons/node-healer/pkg/healer"
)

func TestErrorsBecomeCodes(t *testing.T) {
	h := &fakeHealer{}
	s := serve(t, testConfig(h))
	for name, tc := range map[string]struct {
		err  error
		code codes.Code
		text string
	}{
		"invalid":              {healer.Invalid("volume_path", "is a %s", "symlink"), codes.InvalidArgument, "volume_path: is a symlink"},
		"not found":            {healer.NotFound("no %s", "such path"), codes.NotFound, "no such path"},
		"busy":                 {&healer.Error{Kind: healer.KindBusy, Text: "since 12:00"}, codes.Aborted, "since 12:00"},
		"secrets refused":      {&healer.Error{Kind: healer.KindUnauthenticated, Text: "login"}, codes.Unauthenticated, "login"},
		"disabled":             {&healer.Error{Kind: healer.KindDisabled, Text: "off"}, codes.Unimplemented, "off"},
		"failed":               {healer.Failed("read the mount table", errors.New("EIO")), codes.Unknown, "read the mount table: EIO"},
		"shutting down":        {fmt.Errorf("heal: %w", healer.ErrShuttingDown), codes.Aborted, "heal: the server is shutting down"},
		"foreign":              {errors.New("what?"), codes.Unknown, "what?"},
		"a vendor's own kind":  {&healer.Error{Kind: 99, Text: "what?"}, codes.Unknown, "what?"},
		"wrapped":              {fmt.Errorf("heal: %w", healer.NotFound("gone")), codes.NotFound, "heal: gone"},
		"a status from below":  {healer.Failed("stage", status.Error(codes.Unimplemented, "no")), codes.Unknown, "stage: rpc error: code = Unimplemented desc = no"},
		"a bare status":        {status.Error(codes.Unimplemented, "no"), codes.Unknown, "rpc error: code = Unimplemented desc = no"},
		"our own deadline":     {healer.Failed("probe", context.DeadlineExceeded), codes.Unknown, "probe: context deadline exceeded"},
		"our own cancellation": {context.Canceled, codes.Unknown, "context canceled"},
		"several lines":        {errors.New("a\nb\x00\xff"), codes.Unknown, `a\nb\x00\xff`},
		"a very long one":      {errors.New(strings.Repeat("é", 4000)), codes.Unknown, strings.Repeat("é", 510) + printable.Ellipsis},
	} {
		t.Run(name, func(t *testing.T) {
			h.next(healer.Report{}, tc.err, nil)
			_, err := s.healer().NodeHealer(testContext(t), goodRequest())
			if got := status.Convert(err); got.Code() != tc.code || got.Message() != tc.text || len(got.Message()) > statusBytes {
				t.Errorf("got %v %q, want %v %q", got.Code(), got.Message(), tc.code, tc.text)
			}
		})
	}
}

// Every status tells a program what happened, and when to try again.
func TestErrorDetails(t *testing.T) {
	for name, tc := range map[string]struct {
		err error
		// What the ErrorInfo says: reason, tier, error_type, and what else.
		reason, tier, errorType string
		also                    map[string]string
		retry                   time.Duration // 0: none
	}{
		"invalid":       {err: healer.Invalid("volume_path", "is empty"), reason: "INVALID_REQUEST", tier: "terminal", errorType: "validation"},
		"not found":     {err: healer.NotFound("gone"), reason: "VOLUME_NOT_FOUND", tier: "terminal", errorType: "validation"},
		"busy":          {err: &healer.Error{Kind: healer.KindBusy}, reason: "VOLUME_BUSY", tier: "transient", errorType: "execution", retry: time.Second},
		"shutting down": {err: healer.ErrShuttingDown, reason: "SHUTTING_DOWN", tier: "transient", errorType: "execution", retry: time.Second},
		"disabled":      {err: &healer.Error{Kind: healer.KindDisabled}, reason: "DISABLED", tier: "terminal", errorType: "validation"},
		"not offered":   {err: errNotOffered, reason: "NOT_OFFERED", tier: "terminal", errorType: "validation"},
		"secrets": {
			err:    &healer.Error{Kind: healer.KindUnauthenticated, Step: "delegate"},
			reason: "CREDENTIALS_REFUSED", tier: "terminal", errorType: "permission", also: map[string]string{"step": "delegate"},
		},
		"an errno": {
			err:    healer.Failed("read hunter2", syscall.EBUSY),
			reason: "OPERATION_FAILED", tier: "transient", errorType: "execution", also: map[string]string{"errno": "EBUSY"}, retry: time.Second,
		},
		"a timeout": {
			err:    healer.Failed("probe", context.DeadlineExceeded),
			reason: "OPERATION_FAILED", tier: "retriable", errorType: "timeout", retry: time.Minute,
		},
		"foreign": {err: errors.New("hunter2?"), reason: "OPERATION_FAILED", tier: "retriable", errorType: "unknown", retry: time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			metadata := map[string]string{"tier": tc.tier, "error_type": tc.errorType}
			maps.Copy(metadata, tc.also)
			var info *errdetails.ErrorInfo
			retry := time.Duration(0)
			for _, d := range status.Convert(toStatus(tc.err)).Details() {
				switch d := d.(type) {
				case *errdetails.ErrorInfo:
					info = d
				case *errdetails.RetryInfo:
					retry = d.GetRetryDelay().AsDuration()
				}
			}
			if info.GetReason() != tc.reason || info.GetDomain() != api.ErrorDomain || !maps.Equal(info.GetMetadata(), metadata) || retry != tc.retry {
				t.Errorf("got %v, retry %s; want %s %v, retry %s", info, retry, tc.reason, metadata, tc.retry)
			}
			if strings.Contains(fmt.Sprint(info), "hunter2") {
				t.Error("a secret")
			}
		})
	}
}

// The handlers return the codes of the contract and no other.
func TestOnlyTheContractsCodes(t *testing.T) {
	contract := []codes.Code{codes.InvalidArgument, codes.NotFound, codes.Unimplemented, codes.Aborted, codes.Unauthenticated, codes.Unknown}
	for _, r := range ErrorRows() {
		if !slices.Contains(contract, r.Code) {
			t.Errorf("%s is not in the contract", r.Code)
		}
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
