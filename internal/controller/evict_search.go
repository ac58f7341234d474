package controller

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/csi-addons/node-healer/pkg/api/v1alpha1"
	"github.com/csi-addons/node-healer/pkg/api/volumehealth"
)

const (
	// searchEvery is how often the controller looks for volumes that only new pods mend.
	searchEvery = 30 * time.Second
	// maxSearched bounds the volumes of a namespace that one search reads: who may annotate
	// claims there must not keep it from the claims of others.
	maxSearched = 20
	// automaticPrefix begins the names of the jobs that the controller makes. The claim's UID
	// follows, so there is one for a claim.
	automaticPrefix = "evict-"
	// automaticTTL is how long such a job stays when it has ended, in seconds. The claim gets
	// no other one before.
	automaticTTL = 600
	// maxRetryDeadline is the longest that the schema takes, in seconds.
	maxRetryDeadline = 86400
)

// search makes a job in mode Evict for each claim of which a node says that only new pods mend
// its volume, where the settings allow that. It is made in the claim's namespace: who may see
// the pods there sees why they go, and who may delete them may delete the job.
//
// What a node says is an annotation, which anyone may write who may write the claim. So it only
// says where to look: the job asks the node, and counts for how long the volume is sick.
func (r *Reconciler) search(ctx context.Context) error {
	ctx, done := context.WithTimeout(ctx, roundTimeout)
	defer done()
	settings, err := r.readSettings(ctx)
	if err != nil {
		return err
	}
	allowed, why := parseSettings(settings, "")
	if why != "" || !*allowed.Automatic {
		return nil
	}
	jobs := &v1alpha1.VolumeHealJobList{}
	if err := r.cfg.Writer.List(ctx, jobs, client.UnsafeDisableDeepCopy); err != nil {
		return err
	}
	running, searched := map[string]int{}, map[string]int{}
	made := map[client.ObjectKey]bool{}
	for i := range jobs.Items {
		job := &jobs.Items[i]
		if made[client.ObjectKeyFromObject(job)] = true; job.Status.Result == "" && strings.HasPrefix(job.Name, automaticPrefix) {
			running[job.Namespace]++
		}
	}
	var failed error // the search goes on with other claims
	err = r.eachClaim(ctx, func(claim *metav1.PartialObjectMetadata) error {
		job := &v1alpha1.VolumeHealJob{
			ObjectMeta: metav1.ObjectMeta{Namespace: claim.Namespace, Name: automaticPrefix + string(claim.UID)},
			Spec: v1alpha1.VolumeHealJobSpec{
				Mode: v1alpha1.ModeEvict, Target: v1alpha1.TargetSpec{PersistentVolumeClaim: claim.Name}, TTLSecondsAfterFinished: ptr.To[int32](automaticTTL),
				// It begins once the job has seen the volume sick for so long: another job would count anew.
				RetryDeadlineSeconds: ptr.To(min(defaultRetryDeadline+int64(allowed.After.Seconds()), maxRetryDeadline)),
			},
		}
		// A namespace has no more of them at a time than may evict pods.
		if !evictableFor(claim, allowed.Reasons) || made[client.ObjectKeyFromObject(job)] || running[claim.Namespace] >= half(*allowed.Max) || searched[claim.Namespace] >= maxSearched {
			return nil
		}
		searched[claim.Namespace]++
		wanted, err := r.evictionWanted(ctx, claim, allowed.Drivers)
		if wanted {
			running[claim.Namespace]++
			err = r.cfg.Writer.Create(ctx, job)
		}
		if !apierrors.IsAlreadyExists(err) { // the cache did not have it yet
			failed = cmp.Or(failed, err)
		}
		return nil
	})
	return cmp.Or(err, failed)
}

// evictableFor reports whether a node says that the volume of a claim has one of these reasons.
func evictableFor(claim metav1.Object, reasons []string) bool {
	return slices.ContainsFunc(saidSick(claim.GetAnnotations()), func(v volumehealth.Value) bool {
		return slices.ContainsFunc(v.Evictable, func(reason string) bool { return slices.Contains(reasons, reason) })
	})
}

// evictionWanted reports whether a claim has a volume of one of these drivers that does not work
// elsewhere by now, and nobody forbids evictions: a job would only say so, again and again.
func (r *Reconciler) evictionWanted(ctx context.Context, claim metav1.Object, drivers []string) (bool, error) {
	v, err := r.readVolume(ctx, claim.GetNamespace(), claim.GetName())
	if end := (*ending)(nil); errors.As(err, &end) { // no volume of a driver
		return false, nil
	}
	if err != nil || !slices.Contains(drivers, v.pv.Spec.CSI.Driver) || v.claim.UID != claim.GetUID() || v.worksElsewhere() {
		return false, err
	}
	namespace := &corev1.Namespace{}
	if err := r.cfg.Reader.Get(ctx, client.ObjectKey{Name: claim.GetNamespace()}, namespace); err != nil {
		return false, err
	}
	// The mode of other objects is the job's business.
	return cmp.Or(forbids(namespace), forbids(v.claim), forbids(v.pv)) == "", nil
}
