package nodeserver

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/klog/v2"

	"github.com/csi-addons/node-healer/internal/printable"
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

// logHeal writes the one line of a call that may heal; err is the status that the caller
// gets. A healthy volume that nothing was done to shows with -v=4 only. The line has reasons,
// steps and why they were refused, the answer has the evidence. Nothing of the request but the
// volume ID and the path is logged.
func logHeal(ctx context.Context, took time.Duration, err error, r healer.Report) {
	logger := klog.FromContext(ctx)
	if err == nil && r.Verdict() == healer.Healthy && len(r.Steps) == 0 {
		logger = logger.V(verbosityCalls)
		if !logger.Enabled() {
			return
		}
	}
	answer, duration := status.Convert(err), took.Round(time.Microsecond).String()
	code := answer.Code().String()
	switch answer.Code() {
	case codes.Unknown:
		// A status prints its code too; the text is enough beside keyCode.
		logger.Error(errors.New(answer.Message()), "NodeHealer", keyCode, code, keyDuration, duration)
	case codes.OK:
		reasons, pods := conditionsOf(r)
		logger.Info("NodeHealer", keyCode, code, keyDone, listed(outcomes(r)), keyDriver, printable.Line(r.Driver, logTextBytes), keyDuration, duration,
			keyFound, listed(reasons), keyPath, printable.Line(r.Volume.Path, logTextBytes), keyPod, listed(pods), keyRefused, listed(refusals(r)),
			keyVerdict, string(r.Verdict()))
	default:
		logger.Info("NodeHealer", keyCode, code, keyDuration, duration, keyError, printable.Line(answer.Message(), logTextBytes))
	}
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
			out = append(out, fmt.Sprintf("%s:failed(%s)", s.Step, healer.Classify(s.Err).Type))
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
