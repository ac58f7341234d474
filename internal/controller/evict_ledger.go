package controller

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/retry"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/csi-addons/node-healer/pkg/api/clustersettings"
	"github.com/csi-addons/node-healer/pkg/api/v1alpha1"
)

const (
	// ledgerName is the ConfigMap with the evictions of the last hour. The jobs' status does
	// not do for it: who has made a job may delete it, and so begin again.
	ledgerName = "node-healer-evictions"
	ledgerKey  = "evictions"
	// evictDeadline is how long an eviction may take, and a taint may stand.
	evictDeadline = 10 * time.Minute
	// maxTainted is how long a node may carry our taints in an hour: a tenant's jobs must
	// not keep the pods of others from it.
	maxTainted = 15 * time.Minute
	// maxPerClaim is how often a claim's pods are evicted in an hour: where two new stages
	// did not help, a third one will not.
	maxPerClaim = 2
)

// succeeded is the outcome of an eviction whose pods have ended, and after which the node has
// unstaged the volume where that was needed.
const succeeded = "succeeded"

// ledgerEntry is one eviction. It is written before the taint is made, and closed after the
// taint was removed: there is no taint without an open entry.
type ledgerEntry struct {
	Namespace, Job, Claim, Driver, Node string

	JobUID, ClaimUID types.UID
	// Pods are those that are evicted: all that used the volume on the node at the start, unless
	// NoTaint is true.
	Pods []types.UID
	// NoTaint is true where the volume stays staged: a new pod gets it as the node has it.
	NoTaint bool
	// Start is the value of the taint, and End when the taint was gone: Unix times. End is
	// 0 while the entry is open.
	Start, End int64
	// Outcome is succeeded, or says why the controller gave up; empty: not known yet. It is
	// written before the taint is removed.
	Outcome string
}

func (l ledgerEntry) open() bool { return l.End == 0 }

// taints reports whether a node has the entry's taint, if there has to be one.
func (l ledgerEntry) taints(node *corev1.Node) bool {
	return l.NoTaint || slices.Contains(node.Spec.Taints, taintOf(l.ClaimUID, l.Start))
}

// pastDeadline reports whether a taint of that time has to go, whatever its job says. One from
// the future is as late: a controller whose clock was ahead would else keep it for as long.
func pastDeadline(start int64) bool { return time.Since(time.Unix(start, 0)).Abs() > evictDeadline }

// ledger has the evictions that count.
type ledger []ledgerEntry

// hinders says which limit another eviction would pass, and which evictions have to end before
// it begins; empty: none.
func (l ledger) hinders(next ledgerEntry, allowed clustersettings.Eviction, now time.Time) (spent, busy string) {
	open, claims, drivers, tainted := 0, 0, 0, time.Duration(0)
	openOurs, driverOurs := 0, 0 // of the namespace
	for _, e := range l.within(now) {
		end, ours := e.End, 0
		if e.Namespace == next.Namespace {
			ours = 1
		}
		if e.open() {
			open++
			openOurs += ours
			end = now.Unix()
		}
		if e.ClaimUID == next.ClaimUID {
			claims++
			if e.open() {
				busy = fmt.Sprintf("VolumeHealJob %s/%s evicts the claim's pods", e.Namespace, e.Job)
			}
		}
		if e.Driver == next.Driver {
			drivers++
			driverOurs += ours
		}
		if e.Node == next.Node && !e.NoTaint {
			tainted += time.Duration(max(end-e.Start, 0)) * time.Second
		}
	}
	switch {
	case busy != "":
	case open >= *allowed.Max:
		busy = fmt.Sprintf("the pods of %d claims are being evicted, and the setting evict.max is %d", open, *allowed.Max)
	case openOurs >= half(*allowed.Max):
		busy = fmt.Sprintf("the pods of %d claims of the namespace are being evicted, and half of the setting evict.max is %d", openOurs, half(*allowed.Max))
	}
	switch {
	case claims >= maxPerClaim:
		spent = fmt.Sprintf("the claim's pods were evicted %d times within an hour", claims)
	case drivers >= *allowed.PerHour:
		spent = fmt.Sprintf("driver %s had %d evictions within an hour, and the setting evict.perHour is %d", next.Driver, drivers, *allowed.PerHour)
	case driverOurs >= half(*allowed.PerHour):
		spent = fmt.Sprintf("driver %s had %d evictions in the namespace within an hour, and half of the setting evict.perHour is %d", next.Driver, driverOurs, half(*allowed.PerHour))
	case tainted+evictDeadline > maxTainted:
		spent = fmt.Sprintf("node %s had our taints for %v within an hour, and may have them for %v in all", next.Node, tainted, maxTainted)
	}
	return spent, busy
}

// half is what one namespace may have of what all share: the rest is for others.
func half(of int) int { return (of + 1) / 2 }

// within leaves out what ended more than an hour ago.
func (l ledger) within(now time.Time) ledger {
	return slices.DeleteFunc(slices.Clone(l), func(e ledgerEntry) bool { return !e.open() && now.Sub(time.Unix(e.End, 0)) > time.Hour })
}

// readLedger returns the evictions that were written down, and their ConfigMap. One that
// cannot be read is an error: what was evicted is then not known, and nothing may be. One that
// is missing has none, and cannot be written (deploy/controller/ledger.yaml).
func (r *Reconciler) readLedger(ctx context.Context) (l ledger, kept *corev1.ConfigMap, err error) {
	kept = &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: r.cfg.Gateways.Self.Namespace, Name: ledgerName}}
	if err := r.cfg.Reader.Get(ctx, client.ObjectKeyFromObject(kept), kept); err != nil {
		return nil, kept, client.IgnoreNotFound(err)
	}
	if text := kept.Data[ledgerKey]; text != "" {
		if err := json.Unmarshal([]byte(text), &l); err != nil {
			return nil, kept, fmt.Errorf("ConfigMap %s/%s: %w", kept.Namespace, ledgerName, err)
		}
	}
	return l, kept, nil
}

// changeLedger writes what change returns, unless another controller has written meanwhile:
// then it is asked again.
func (r *Reconciler) changeLedger(ctx context.Context, change func(ledger) ledger) error {
	return retry.RetryOnConflict(retry.DefaultRetry, func() error {
		l, kept, err := r.readLedger(ctx)
		if err != nil {
			return err
		}
		l = change(l).within(time.Now())
		text, err := json.Marshal(l)
		if err != nil {
			return err
		}
		kept.Data = map[string]string{ledgerKey: string(text)}
		return r.cfg.Writer.Update(ctx, kept)
	})
}

func (r *Reconciler) changeEntry(ctx context.Context, job types.UID, change func(*ledgerEntry)) error {
	return r.changeLedger(ctx, func(l ledger) ledger {
		for i := range l {
			if l[i].open() && l[i].JobUID == job {
				change(&l[i])
			}
		}
		return l
	})
}

// clean removes the taint of an eviction, and closes its entry when the taint is gone. The claim's
// next eviction may have begun since the entry was read: its taint has another value, and stays.
func (r *Reconciler) clean(ctx context.Context, entry ledgerEntry) error {
	node := &corev1.Node{}
	err := r.cfg.Reader.Get(ctx, client.ObjectKey{Name: entry.Node}, node)
	if err == nil {
		err = r.removeTaints(ctx, node, func(t corev1.Taint) bool { return t == taintOf(entry.ClaimUID, entry.Start) })
	}
	if err != nil && !apierrors.IsNotFound(err) { // a node that is gone has no taint
		return err
	}
	if err := r.changeEntry(ctx, entry.JobUID, func(e *ledgerEntry) { e.End = time.Now().Unix() }); err != nil {
		return err
	}
	result := v1alpha1.ResultFailed
	if entry.Outcome == succeeded {
		result = v1alpha1.ResultSucceeded
	}
	r.evictions.WithLabelValues(entry.Driver, string(result)).Inc()
	return nil
}
