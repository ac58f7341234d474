package nodeserver

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/klog/v2"

	"github.com/csi-addons/node-healer/internal/printable"
	"github.com/csi-addons/node-healer/pkg/api/healerpb"
	"github.com/csi-addons/node-healer/pkg/healer"
)

// The keys of this package's log lines. They are part of the interface.
const (
	keyVolumeID = "volume_id"
	keyCaller   = "caller"
	keyMethod   = "method"
	keyCode     = "code"
	keyDuration = "duration"
	keyVerdict  = "verdict"
	keyFound    = "found"
	keyDone     = "done"
	keyRefused  = "refused"
	keyError    = "error"
	keyPanic    = "panic"
	keyStack    = "stack"
	keyUID      = "uid"
	keyPID      = "pid"
	keyRule     = "rule"
)

// logTextBytes bounds one text in a log line.
const logTextBytes = 512

// verbosityCalls is klog's -v from which calls other than NodeHealer are logged, and
// those that found a healthy volume: a caller may check each one every few seconds.
const verbosityCalls = 4

// logHeal writes the one line of a NodeHealer call; the logger knows the volume, and err
// is the status that the caller gets. A healthy volume that nothing was done to shows with
// -v=4 only. The line has reasons and steps, the answer has the evidence. Nothing of the
// request but the volume ID is logged.
func logHeal(logger klog.Logger, took time.Duration, err error, r healer.Report) {
	if err == nil && r.Verdict() == healer.Healthy && len(r.Steps) == 0 {
		logger = logger.V(verbosityCalls)
		if !logger.Enabled() {
			return
		}
	}
	answer := status.Convert(err)
	fields := []any{keyCode, answer.Code().String(), keyDuration, took.Round(time.Microsecond).String()}
	switch answer.Code() {
	case codes.Unknown:
		// A status prints its code too; the text is enough beside keyCode.
		logger.Error(errors.New(answer.Message()), "NodeHealer", fields...)
		return
	case codes.OK:
		fields = append(fields,
			keyVerdict, string(r.Verdict()),
			keyFound, listed(reasons(r)),
			keyDone, listed(outcomes(r)),
			keyRefused, listed(refusals(r)))
	default:
		fields = append(fields, keyError, printable.Line(answer.Message(), logTextBytes))
	}
	logger.Info("NodeHealer", fields...)
}

func listed(items []string) string {
	return printable.Line(strings.Join(unique(items), ","), logTextBytes)
}

// reasons returns what was found before anything was done, then what was found
// afterwards.
func reasons(r healer.Report) []string {
	var out []string
	for _, d := range []healer.Diagnosis{r.Before, r.After} {
		for _, c := range d.Conditions {
			out = append(out, string(c.Reason))
		}
		for _, f := range d.Failures {
			out = append(out, "failed:"+f.Provider)
		}
	}
	return out
}

func outcomes(r healer.Report) []string {
	out := make([]string, 0, len(r.Steps))
	for _, s := range r.Steps {
		if s.Err != nil {
			out = append(out, fmt.Sprintf("%s:failed(%s)", s.Step, healer.Classify(s.Step, "", s.Err).Type))
			continue
		}
		out = append(out, s.Step)
	}
	return out
}

func refusals(r healer.Report) []string {
	out := make([]string, 0, len(r.Refused))
	for _, s := range r.Refused {
		out = append(out, s.Step)
	}
	return out
}

func logUnary(ctx context.Context, req any, info *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
	started := time.Now()
	resp, err := handle(ctx, req)
	if info.FullMethod != healerpb.HealerNode_NodeHealer_FullMethodName {
		logCall(ctx, info.FullMethod, started, err)
	}
	return resp, err
}

func logStream(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handle grpc.StreamHandler) error {
	received(stream.Context()) // only callers on this node have streams, and those may be idle
	started := time.Now()
	err := handle(srv, stream)
	logCall(stream.Context(), info.FullMethod, started, err)
	return err
}

func logCall(ctx context.Context, method string, started time.Time, err error) {
	klog.FromContext(ctx).V(verbosityCalls).Info("Call", keyMethod, method, keyCode, status.Code(err).String(),
		keyDuration, time.Since(started).Round(time.Microsecond).String())
}
