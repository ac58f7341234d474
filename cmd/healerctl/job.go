package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/csi-addons/node-healer/internal/printable"
	"github.com/csi-addons/node-healer/pkg/api/v1alpha1"
)

const (
	// jobsResource is what the API calls VolumeHealJobs.
	jobsResource = "volumehealjobs"
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

	wait    bool
	timeout time.Duration
	// evict and dryRun are of a heal: see evict.go.
	evict, dryRun bool
}

func (f *claimFlags) add(c *cobra.Command) {
	f.clusterFlags.add(c.Flags())
	c.Flags().BoolVar(&f.wait, "wait", true, "of a claim: wait until the job has ended, and say what it found")
	c.Flags().DurationVar(&f.timeout, "timeout", jobPatience, "of a claim: how long to wait; the job goes on")
}

// run has a job check or heal a claim's volume, if that is what the argument names.
func (f *claimFlags) run(c *cobra.Command, mode v1alpha1.Mode, arg, output string) (is bool, err error) {
	claim, is := strings.CutPrefix(arg, "pvc/")
	only, set := "pvc/NAME", setOf(c.Flags(), "kubeconfig", "context", "namespace", "wait", "timeout", "evict")
	if is {
		only, set = "a VOLUME-ID", setOf(c.Flags(), "driver", "path", "endpoint")
	}
	switch {
	case len(set) > 0:
		return is, fmt.Errorf("%s: only with %s", strings.Join(set, ", "), only)
	case !is:
		return false, nil
	case claim == "":
		return true, errors.New("pvc/: the name of a claim is missing")
	}
	api, err := f.connect()
	if err != nil {
		return true, callError{status.Error(codes.Unavailable, err.Error())}
	}
	job, err := api.create(c.Context(), f.spec(mode, claim))
	if err != nil {
		return true, err
	}
	if !f.wait {
		return true, printed(printCreated(c.OutOrStdout(), output, job))
	}
	ctx, cancel := context.WithTimeout(c.Context(), f.timeout)
	defer cancel()
	if job, err = api.wait(ctx, c.ErrOrStderr(), job); err != nil {
		return true, err
	}
	if err := printed(printJob(c.OutOrStdout(), output, job)); err != nil {
		return true, err
	}
	return true, outcomeOf(job)
}

func (a *cluster) create(ctx context.Context, spec v1alpha1.VolumeHealJobSpec) (*v1alpha1.VolumeHealJob, error) {
	job := &v1alpha1.VolumeHealJob{
		TypeMeta:   metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion.String(), Kind: "VolumeHealJob"},
		ObjectMeta: metav1.ObjectMeta{GenerateName: strings.ToLower(string(spec.Mode)) + "-" + spec.Target.PersistentVolumeClaim + "-"},
		Spec:       spec,
	}
	made := &v1alpha1.VolumeHealJob{}
	err := a.jobs.Post().Namespace(a.namespace).Resource(jobsResource).Body(job).Do(ctx).Into(made)
	if err != nil {
		return nil, refused(err)
	}
	return made, nil
}

// wait returns a job that has ended. An API that does not answer for a while is asked
// again.
func (a *cluster) wait(ctx context.Context, stderr io.Writer, job *v1alpha1.VolumeHealJob) (*v1alpha1.VolumeHealJob, error) {
	name, last := job.Namespace+"/"+job.Name, error(nil)
	says := progress(stderr, name)
	defer says.done()
	for job.Status.Result == "" {
		says.text(name + ", " + waitsFor(job))
		select {
		case <-time.After(jobGap):
		case <-ctx.Done():
			text := "job " + name + " has not ended, " + waitsFor(job) + "; it goes on"
			if last != nil {
				text += ": " + last.Error()
			}
			return nil, callError{status.Error(codes.DeadlineExceeded, text)}
		}
		now := &v1alpha1.VolumeHealJob{}
		last = a.jobs.Get().Namespace(job.Namespace).Resource(jobsResource).Name(job.Name).Do(ctx).Into(now)
		switch {
		case last == nil:
			job = now
		case apierrors.IsNotFound(last), apierrors.IsForbidden(last):
			return nil, refused(last)
		}
	}
	return job, nil
}

// waitsFor says what a job that has not ended waits for.
func waitsFor(job *v1alpha1.VolumeHealJob) string {
	if job.Status.StartTime == nil {
		return "no controller has taken it up"
	}
	if text := evicts(job); text != "" {
		return text
	}
	for _, n := range job.Status.Nodes {
		if n.NextTryTime != nil {
			return fmt.Sprintf("%s: %s, tried again at %s", n.Node, n.Reason, n.NextTryTime.Format(time.TimeOnly))
		}
	}
	return cmp.Or(job.Status.Answered, "0") + " nodes have answered"
}

// ended returns the condition by which a job has ended.
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

func printCreated(w io.Writer, output string, job *v1alpha1.VolumeHealJob) error {
	if !isText(output) {
		return printData(w, output, job)
	}
	_, err := fmt.Fprintf(w, "volumehealjob.%s/%s created\n", v1alpha1.GroupVersion.Group, printable.Line(job.Name, maxCellBytes))
	return err
}

func printJob(w io.Writer, output string, job *v1alpha1.VolumeHealJob) error {
	if !isText(output) {
		return printData(w, output, job)
	}
	end := ended(job)
	line := printable.Line(fmt.Sprintf("%s, %s: %s", job.Status.Result, end.Reason, end.Message), maxCellBytes)
	if _, err := fmt.Fprintln(w, painted(w, verdictOf(job), line)); err != nil {
		return err
	}
	if len(job.Status.Nodes) == 0 {
		return nil
	}
	table := tabwriter.NewWriter(w, 0, 0, 3, ' ', 0)
	row(table, "NODE", "ABNORMAL", "CODE", "TRIES", "MESSAGE")
	for _, n := range job.Status.Nodes {
		abnormal := ""
		if n.Abnormal != nil {
			abnormal = strconv.FormatBool(*n.Abnormal)
		}
		row(table, n.Node, abnormal, n.Code, strconv.Itoa(int(n.Tries)), n.Message)
	}
	return table.Flush()
}

func verdictOf(job *v1alpha1.VolumeHealJob) string {
	if outcomeOf(job) == nil {
		return "healthy"
	}
	return "abnormal"
}
