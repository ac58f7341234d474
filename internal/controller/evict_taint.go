package controller

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/csi-addons/node-healer/pkg/api/clustersettings"
	"github.com/csi-addons/node-healer/pkg/api/v1alpha1"
)

func taintOf(claim types.UID, start int64) corev1.Taint {
	return corev1.Taint{Key: clustersettings.TaintPrefix + string(claim), Value: strconv.FormatInt(start, 10), Effect: corev1.TaintEffectNoSchedule}
}

// writeTaints writes the whole list, so the node must not have changed since it was read.
func (r *Reconciler) writeTaints(ctx context.Context, node *corev1.Node, taints []corev1.Taint) error {
	changed := node.DeepCopy()
	changed.Spec.Taints = taints
	return r.cfg.Writer.Patch(ctx, changed, client.MergeFromWithOptions(node, client.MergeFromWithOptimisticLock{}))
}

// removeTaints removes the taints that gone tells of.
func (r *Reconciler) removeTaints(ctx context.Context, node *corev1.Node, gone func(corev1.Taint) bool) error {
	left := slices.DeleteFunc(slices.Clone(node.Spec.Taints), gone)
	if len(left) == len(node.Spec.Taints) {
		return nil
	}
	if err := r.writeTaints(ctx, node, left); err != nil {
		return err
	}
	r.cfg.Events.Eventf(asInEvents(node.Name), nil, corev1.EventTypeNormal, ReasonTaintRemoved, string(v1alpha1.ModeEvict), "%d taints of evictions were removed", len(node.Spec.Taints)-len(left))
	return nil
}

// sweepEvery is how often taints that were left are looked for.
const sweepEvery = evictDeadline / 2

// sweep removes our taints that nobody will remove otherwise: of jobs that were deleted, and
// all that are older than the deadline. It goes on with other nodes where one cannot be read or written.
func (r *Reconciler) sweep(ctx context.Context) error {
	ctx, done := context.WithTimeout(ctx, roundTimeout)
	defer done()
	all, _, err := r.readLedger(ctx)
	errs := []error{err}
	for _, entry := range all {
		claim := entry.Namespace + "/" + entry.Claim
		switch {
		case !entry.open():
		case pastDeadline(entry.Start): // also while other jobs keep the claim busy
			errs = append(errs, r.clean(ctx, entry))
		case r.claims.take(claim): // else its job is at work
			errs = append(errs, r.cleanAbandoned(ctx, entry))
			r.claims.giveBack(claim)
		}
	}
	errs = append(errs, list(ctx, r, &corev1.NodeList{}, everywhere, func(node *corev1.Node) error {
		errs = append(errs, r.sweepNode(ctx, node))
		return nil
	}))
	return errors.Join(errs...)
}

// cleanAbandoned cleans up for a job that has ended or is gone.
func (r *Reconciler) cleanAbandoned(ctx context.Context, entry ledgerEntry) error {
	job := &v1alpha1.VolumeHealJob{}
	err := r.cfg.Reader.Get(ctx, client.ObjectKey{Namespace: entry.Namespace, Name: entry.Job}, job)
	if err != nil && !apierrors.IsNotFound(err) {
		return err
	}
	if goesOn := err == nil && job.UID == entry.JobUID && job.Status.Result == "" && job.DeletionTimestamp == nil; goesOn {
		return nil
	}
	return r.clean(ctx, entry)
}

// sweepNode removes our taints that are older than the deadline, and those that have no open
// entry with their time. Where the ledger cannot be read, the former still go.
func (r *Reconciler) sweepNode(ctx context.Context, node *corev1.Node) error {
	ours := func(t corev1.Taint) bool { return strings.HasPrefix(t.Key, clustersettings.TaintPrefix) }
	if !slices.ContainsFunc(node.Spec.Taints, ours) {
		return nil
	}
	// The ledger has an entry before a node has the taint, so it is read after the node.
	all, _, unread := r.readLedger(ctx)
	err := r.removeTaints(ctx, node, func(t corev1.Taint) bool {
		start, _ := strconv.ParseInt(t.Value, 10, 64) // what is no time is of 1970
		entered := unread != nil || slices.ContainsFunc(all, func(e ledgerEntry) bool {
			return e.open() && e.Node == node.Name && t == taintOf(e.ClaimUID, e.Start)
		})
		return ours(t) && (pastDeadline(start) || !entered)
	})
	return errors.Join(unread, client.IgnoreNotFound(err))
}
