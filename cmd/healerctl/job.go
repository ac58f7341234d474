package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/utils/ptr"

	"github.com/csi-addons/node-healer/cmd/healerctl/internal/kube"
	"github.com/csi-addons/node-healer/internal/printable"
	"github.com/csi-addons/node-healer/pkg/api/v1alpha1"
)

const (
	// jobKept is for how long a job can be looked at that has ended.
	jobKept = time.Hour
	// jobGap is the time between two looks at a job.
	jobGap = 500 * time.Millisecond
	// jobPatience is longer than a job tries to reach its nodes.
	jobPatience = 15 * time.Minute
)

// claimFlags are those of a command that works on a claim's volume, on all its nodes.
type claimFlags struct {
	clusterFlags

	wait, evict bool
	timeout     time.Duration
}

func (f *claimFlags) add(c *cobra.Command) {
	f.clusterFlags.add(c.Flags())
	c.Flags().BoolVar(&f.wait, "wait", true, "of a claim: wait until the job has ended, and say what it found")
	c.Flags().DurationVar(&f.timeout, "timeout", jobPatience, "of a claim: how long to wait; the job goes on")
}

// run has a job check or heal a claim's volume.
func (f *claimFlags) run(c *cobra.Command, dryRun bool, claim, output string) error {
	if claim == "" {
		return usage("pvc/: the name of a claim is missing")
	}
	mode := v1alpha1.ModeHeal
	switch {
	case f.evict:
		mode = v1alpha1.ModeEvict
	case dryRun:
		mode = v1alpha1.ModeCheck
	}
	api, namespace, err := f.connect()
	if err != nil {
		return err
	}
	job, err := kube.Create(c.Context(), api, kube.Jobs, namespace, &v1alpha1.VolumeHealJob{
		TypeMeta:   metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion.String(), Kind: "VolumeHealJob"},
		ObjectMeta: metav1.ObjectMeta{GenerateName: strings.ToLower(string(mode)) + "-" + claim + "-"},
		Spec: v1alpha1.VolumeHealJobSpec{
			Target: v1alpha1.TargetSpec{PersistentVolumeClaim: claim}, Mode: mode, DryRun: dryRun && f.evict,
			TTLSecondsAfterFinished: ptr.To(int32(jobKept.Seconds())),
		},
	})
	if err != nil {
		return refused(err)
	}
	if !f.wait {
		return answer(c, output, job, func(w io.Writer) error {
			_, err := fmt.Fprintf(w, "volumehealjob.%s/%s created\n", v1alpha1.GroupVersion.Group, printable.Line(job.Name, maxCellBytes))
			return err
		})
	}
	ctx, cancel := context.WithTimeout(c.Context(), f.timeout)
	defer cancel()
	if job, err = awaitEnd(ctx, api, c.ErrOrStderr(), job); err != nil {
		return err
	}
	return cmp.Or(answer(c, output, job, func(w io.Writer) error { return printJob(w, job) }), outcomeOf(job))
}

// awaitEnd returns a job that has ended. An API that does not answer for a while is asked
// again.
func awaitEnd(ctx context.Context, api kube.Client, stderr io.Writer, job *v1alpha1.VolumeHealJob) (*v1alpha1.VolumeHealJob, error) {
	name, last := job.Namespace+"/"+job.Name, error(nil)
	say, done := progress(stderr, name)
	defer done()
	err := wait.PollUntilContextCancel(ctx, jobGap, false, func(ctx context.Context) (done bool, _ error) {
		say(name + ", " + waitsFor(job))
		var now *v1alpha1.VolumeHealJob
		now, last = kube.Get[v1alpha1.VolumeHealJob](ctx, api, kube.Jobs, job.Namespace, job.Name)
		switch {
		case last == nil:
			job = now
		case apierrors.IsNotFound(last), apierrors.IsForbidden(last):
			return false, refused(last)
		}
		return job.Status.Result != "", nil
	})
	if wait.Interrupted(err) {
		text := "job " + name + " has not ended, " + waitsFor(job) + "; it goes on"
		if last != nil {
			text += ": " + last.Error()
		}
		return nil, status.Error(codes.DeadlineExceeded, text)
	}
	return job, err
}

// waitsFor says what a job that has not ended waits for.
func waitsFor(job *v1alpha1.VolumeHealJob) string {
	if job.Status.StartTime == nil {
		return "no controller has taken it up"
	}
	if now := meta.FindStatusCondition(job.Status.Conditions, v1alpha1.ConditionProgressing); now != nil && job.Spec.Mode == v1alpha1.ModeEvict {
		return printable.Line(now.Reason+": "+now.Message, maxCellBytes)
	}
	for _, n := range job.Status.Nodes {
		if n.NextTryTime != nil {
			return fmt.Sprintf("%s: %s, tried again at %s", n.Node, n.Reason, n.NextTryTime.Format(time.TimeOnly))
		}
	}
	return cmp.Or(job.Status.Answered, "0") + " nodes have answered"
}

func ended(job *v1alpha1.VolumeHealJob) metav1.Condition {
	for _, c := range job.Status.Conditions {
		if c.Status == metav1.ConditionTrue && (c.Type == v1alpha1.ConditionComplete || c.Type == v1alpha1.ConditionFailed) {
			return c
		}
	}
	return metav1.Condition{}
}

// outcomeOf returns the exit code for a job that has ended.
func outcomeOf(job *v1alpha1.VolumeHealJob) error {
	switch {
	case ptr.Deref(job.Status.Abnormal, false), strings.HasPrefix(ended(job).Reason, "Eviction"):
		return outcome(exitAbnormal)
	case job.Status.Result == v1alpha1.ResultSucceeded:
		return nil
	case ended(job).Reason == "ClaimNotFound":
		return outcome(exitNotFound)
	}
	return outcome(exitNoAnswer)
}

func printJob(w io.Writer, job *v1alpha1.VolumeHealJob) error {
	end := ended(job)
	line := printable.Line(fmt.Sprintf("%s, %s: %s", job.Status.Result, end.Reason, end.Message), maxCellBytes)
	verdict := "abnormal"
	if outcomeOf(job) == nil {
		verdict = "healthy"
	}
	if _, err := fmt.Fprintln(w, painted(w, verdict, line)); err != nil || len(job.Status.Nodes) == 0 {
		return err
	}
	var t table
	t.row("", "NODE", "ABNORMAL", "CODE", "TRIES", "MESSAGE")
	for _, n := range job.Status.Nodes {
		abnormal := ""
		if n.Abnormal != nil {
			abnormal = strconv.FormatBool(*n.Abnormal)
		}
		t.row("", n.Node, abnormal, n.Code, strconv.Itoa(int(n.Tries)), n.Message)
	}
	return t.print(w)
}
