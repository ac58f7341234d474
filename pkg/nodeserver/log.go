package nodeserver

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
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
	keyDriver   = "driver"
	keyPath     = "path"
	keyPod      = "pod"
)

// logTextBytes bounds one text in a log line.
const logTextBytes = 512

// verbosityCalls is klog's -v from which calls other than NodeHealer are logged, and
// those that found a healthy volume: a caller may check each one every few seconds.
const verbosityCalls = 4

// logHeal writes the one line of a NodeHealer call; the logger knows the volume, and err
// is the status that the caller gets. A healthy volume that nothing was done to shows with
// -v=4 only. The line has reasons, steps and why they were refused, the answer has the
// evidence. Nothing of the request but the volume ID and the path is logged.
func logHeal(logger klog.Logger, took time.Duration, err error, r healer.Report) {
	if err == nil && r.Verdict() == healer.Healthy && len(r.Steps) == 0 {
		logger = logger.V(verbosityCalls)
		if !logger.Enabled() {
			return
		}
	}
	answer := status.Convert(err)
	fields := map[string]string{keyCode: answer.Code().String(), keyDuration: took.Round(time.Microsecond).String()}
	switch answer.Code() {
	case codes.Unknown:
		// A status prints its code too; the text is enough beside keyCode.
		logger.Error(errors.New(answer.Message()), "NodeHealer", sorted(fields)...)
		return
	case codes.OK:
		reasons, pods := conditionsOf(r)
		fields[keyDriver], fields[keyPath], fields[keyPod] = listed([]string{r.Driver}), listed([]string{r.Volume.Path}), listed(pods)
		fields[keyVerdict], fields[keyFound] = string(r.Verdict()), listed(reasons)
		fields[keyDone], fields[keyRefused] = listed(outcomes(r)), listed(refusals(r))
	default:
		fields[keyError] = printable.Line(answer.Message(), logTextBytes)
	}
	logger.Info("NodeHealer", sorted(fields)...)
}

// sorted returns fields for a line, in the order of their keys.
func sorted(fields map[string]string) (all []any) {
	for _, key := range slices.Sorted(maps.Keys(fields)) {
		all = append(all, key, fields[key])
	}
	return all
}

func listed(items []string) string {
	return printable.Line(strings.Join(unique(items), ","), logTextBytes)
}

// conditionsOf returns what was wrong before or after anything was done, and the pods that
// have it; of a volume with which nothing is, the pod of its path.
func conditionsOf(r healer.Report) (reasons, pods []string) {
	w := newWording(r, maxShortPathBytes)
	for _, c := range slices.Concat(w.before, w.after) {
		reason := string(c.Reason)
		if c.Reason == healer.ProviderFailed {
			reason = "failed:" + c.Provider
		}
		reasons, pods = append(reasons, reason), append(pods, w.byPath[c.MountPoint].PodUID)
	}
	if pods = slices.DeleteFunc(pods, func(uid string) bool { return uid == "" }); len(pods) == 0 {
		pods = append(pods, w.byPath[r.Volume.Path].PodUID)
	}
	slices.Sort(reasons)
	slices.Sort(pods)
	return reasons, pods
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
		out = append(out, s.Step+": "+s.Why)
	}
	slices.Sort(out)
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
