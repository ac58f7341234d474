package controller

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/csi-addons/node-healer/internal/printable"
	"github.com/csi-addons/node-healer/pkg/api"
	"github.com/csi-addons/node-healer/pkg/api/clustersettings"
	"github.com/csi-addons/node-healer/pkg/api/v1alpha1"
	"github.com/csi-addons/node-healer/pkg/api/volumehealth"
)

const (
	// evictDelay is how long an eviction waits at least before it looks again, on average.
	evictDelay = 2 * time.Second
	// evictCheckTimeout bounds a node's checks: no taint stands longer for one that hangs.
	evictCheckTimeout = 30 * time.Second
	// newPodPatience is how long the pods that come after an eviction may take to run.
	newPodPatience = 5 * time.Minute
)

// waiting is an error that has an eviction look again later; one that has not begun only until it
// is late, if that is asked for.
type waiting struct {
	reason, message string
	inTime          bool
}

func (w *waiting) Error() string { return w.message }

// awaitTurn is for what keeps an eviction from its beginning and may end by itself.
func awaitTurn(format string, args ...any) error {
	return &waiting{reason: ReasonEvictionWaits, message: fmt.Sprintf(format, args...), inTime: true}
}

// refuse ends a job that has not begun to evict, and has the controller give up what has begun.
func refuse(why string) error { return &ending{reason: ReasonEvictionRefused, message: why} }

// evict takes a job in mode Evict one step further, until no pod is left to be evicted: then it
// returns true, and what is left is to check the volume in the pods that come.
//
// Each step begins from what the API has: the job's entry in the ledger, the taint, and the
// pods. So a controller that ends anywhere is followed by one that goes on, or gives up and
// removes the taint (docs/eviction.md).
func (p *pass) evict(ctx context.Context) (done bool, result ctrl.Result, err error) {
	all, _, err := p.readLedger(ctx)
	if err != nil {
		return false, ctrl.Result{}, err
	}
	i := slices.IndexFunc(all, func(e ledgerEntry) bool { return e.JobUID == p.job.UID })
	since := p.job.Status.StartTime.Time
	if i >= 0 {
		since = time.Unix(all[i].Start, 0)
	}
	switch {
	case i < 0:
		err = p.consider(ctx, all)
	case all[i].open() && all[i].Outcome != "":
		err = p.clean(ctx, all[i])
	case all[i].open():
		err = p.goOn(ctx, all[i])
		if end := (*ending)(nil); errors.As(err, &end) {
			err = p.settle(ctx, all[i], end.message)
		}
	case all[i].Outcome == succeeded:
		p.until = time.Unix(all[i].End, 0).Add(newPodPatience)
		return true, ctrl.Result{}, nil
	default: // without an outcome the sweeper closed it
		err = &ending{reason: ReasonEvictionGaveUp, message: cmp.Or(all[i].Outcome, p.tookTooLong())}
	}
	var why *waiting
	switch waits := errors.As(err, &why); {
	case waits && why.inTime && i < 0 && (p.job.Spec.DryRun || p.late(p.evictAfter(ctx))):
		return false, ctrl.Result{}, refuse(why.message)
	case waits:
		p.progress(why.reason, why.message)
		// The later the longer the eviction waits: each time costs several lists of the API.
		return false, later(min(max(evictDelay, time.Since(since)/8), evictCheckTimeout)), p.save(ctx)
	case err != nil:
		return false, ctrl.Result{}, err
	}
	// The next step begins at once, from what the API has then.
	return false, ctrl.Result{RequeueAfter: time.Millisecond}, p.save(ctx)
}

// consider decides whether to begin, and writes down that it has begun: no node is tainted
// and no pod evicted before.
func (p *pass) consider(ctx context.Context, all ledger) error {
	driver, now := p.volume.pv.Spec.CSI.Driver, time.Now()
	settings, err := p.readSettings(ctx)
	if err != nil {
		return err
	}
	allowed, why := parseSettings(settings, driver)
	if why != "" {
		return refuse(why)
	}
	if !*allowed.Automatic && p.job.Name == automaticPrefix+string(p.volume.claim.UID) { // set since it was made
		return refuse("the setting evict has automatic: false, and the controller made this job")
	}
	pods, err := p.podsOf(ctx, p.volume.claim)
	if err != nil {
		return err
	}
	node := nodeToAsk(p.volume.claim, pods)
	switch {
	case node == "":
		return &ending{reason: ReasonNotInUse, message: "no pod on a node uses the claim", succeeded: true}
	case slices.ContainsFunc(pods, func(pod corev1.Pod) bool { return pod.DeletionTimestamp != nil }):
		return awaitTurn("a pod that uses the volume is ending")
	}
	next := ledgerEntry{
		Namespace: p.job.Namespace, Job: p.job.Name, JobUID: p.job.UID, Claim: p.volume.claim.Name, ClaimUID: p.volume.claim.UID,
		Driver: driver, Node: node, Start: now.Unix(),
	}
	switch spent, busy := all.hinders(next, allowed, now); {
	case spent != "":
		return refuse(spent)
	case busy != "":
		return awaitTurn("%s", busy)
	}
	e, err := p.readEvidence(ctx, node, pods, nil, settings)
	if err != nil {
		return err
	}
	if err := p.confirm(ctx, e); err != nil {
		return err
	}
	var names []string
	for _, pod := range e.goes() {
		names, next.Pods = append(names, pod.Name), append(next.Pods, pod.UID)
	}
	message := fmt.Sprintf("evict %d pods (%s) of node %s: %s", len(names), strings.Join(names, ", "), node, e.asked.message)
	if p.job.Spec.DryRun {
		return &ending{reason: ReasonWouldEvict, message: "would " + message, succeeded: true}
	}
	if p.late(allowed.After.Duration) {
		return refuse("it is too late to begin: the job's deadline, and what evict.after adds to it, have passed")
	}
	if p.job.Status.SickSince == nil {
		p.job.Status.SickSince = ptr.To(metav1.NewTime(now))
	}
	if now.Sub(p.job.Status.SickSince.Time) < allowed.After.Duration {
		return &waiting{reason: ReasonEvictionWaits, message: fmt.Sprintf("once the volume was sick for %v, pods are evicted: %s", allowed.After.Duration, e.asked.message)}
	}
	next.NoTaint = e.staysStaged()
	return p.begins(ctx, next, allowed, message)
}

// late reports whether the job's deadline has passed, and where it has seen the volume sick (mode Evict) another
// time as well, which is a while after the volume had been sick for long enough.
func (p *pass) late(after time.Duration) bool {
	since := p.job.Status.SickSince
	return time.Now().After(p.deadline()) && (since == nil || time.Since(since.Time) > after+evictDeadline)
}

// evictAfter returns the setting evict.after; where it cannot be read, the longest that a job may take.
func (p *pass) evictAfter(ctx context.Context) time.Duration {
	settings, err := p.readSettings(ctx)
	if err != nil {
		return maxRetryDeadline * time.Second
	}
	allowed, _ := parseSettings(settings, "")
	return ptr.Deref(allowed.After, metav1.Duration{}).Duration
}

// nodeToAsk returns the node whose pods are to be evicted: one that says that the volume is
// sick there, else any with a pod; empty: there is none.
func nodeToAsk(claim *corev1.PersistentVolumeClaim, pods []corev1.Pod) (node string) {
	said := saidSick(claim.Annotations)
	for _, pod := range pods {
		node = cmp.Or(node, pod.Spec.NodeName)
		if slices.ContainsFunc(said, func(v volumehealth.Value) bool { return v.Node == pod.Spec.NodeName }) {
			return pod.Spec.NodeName
		}
	}
	return node
}

// confirm returns an error unless pods may be evicted, by what the node and the API say now.
func (p *pass) confirm(ctx context.Context, e *evidence) error {
	node := e.node.Name
	switch {
	case e.asked.abnormal == nil && e.asked.class.Tier == api.Terminal:
		return &ending{reason: e.asked.reason, message: fmt.Sprintf("node %s: %s", node, e.asked.message)}
	case e.asked.abnormal == nil:
		return awaitTurn("node %s did not answer: %s", node, e.asked.message)
	case !*e.asked.abnormal:
		return &ending{reason: ReasonHealthy, message: fmt.Sprintf("node %s: %s", node, e.asked.message), succeeded: true}
	}
	if why := e.refused(); why != "" {
		return refuse(why)
	}
	if !e.staysStaged() {
		// The node has to say that it has the volume staged, or its word that it has not
		// would later mean nothing.
		switch staged, known, why := p.staged(ctx, node); {
		case !known:
			return awaitTurn("node %s did not say whether it has the volume staged: %s", node, why)
		case !staged:
			return refuse(fmt.Sprintf("node %s does not say that it has the volume staged", node))
		}
	}
	return p.tryEvictions(ctx, e.goes())
}

// begins writes an eviction down, unless another controller has meanwhile written down one
// that keeps it from beginning.
func (p *pass) begins(ctx context.Context, next ledgerEntry, allowed clustersettings.Eviction, message string) error {
	var spent, busy string
	err := p.changeLedger(ctx, func(l ledger) ledger {
		if spent, busy = l.hinders(next, allowed, time.Now()); spent+busy == "" {
			l = append(l, next)
		}
		return l
	})
	switch {
	case apierrors.IsNotFound(err):
		return refuse("there is no ConfigMap " + ledgerName + " to write the eviction down")
	case err != nil:
		return err
	case spent+busy != "":
		return awaitTurn("%s", cmp.Or(spent, busy))
	}
	if !next.NoTaint {
		message += fmt.Sprintf(". No new pod is scheduled to the node until the volume is unstaged, for %v at most (taint %s%s)",
			evictDeadline, clustersettings.TaintPrefix, next.ClaimUID)
	}
	p.tellAct(next, corev1.EventTypeWarning, ReasonEvicting, message)
	return nil
}

// goOn continues what has begun. The taint stands before the first pod is evicted: kubelet
// would publish the volume to the new pod before it unpublished it from the old one, and
// the new pod would have the dead superblock. With an *ending the controller gives up.
func (p *pass) goOn(ctx context.Context, entry ledgerEntry) error {
	switch {
	case pastDeadline(entry.Start):
		return refuse(p.tookTooLong())
	case entry.ClaimUID != p.volume.claim.UID:
		return refuse("another claim has its name now")
	}
	node := &corev1.Node{}
	switch err := p.cfg.Reader.Get(ctx, client.ObjectKey{Name: entry.Node}, node); {
	case apierrors.IsNotFound(err):
		return refuse("the node is gone")
	case err != nil:
		return err
	}
	pods, err := p.podsOf(ctx, p.volume.claim)
	if err != nil {
		return err
	}
	todo, ending, arrived := progressOf(entry, pods)
	begun := len(todo) < len(entry.Pods)
	switch {
	case begun && !entry.taints(node):
		return refuse("pods have ended, and the node does not have the taint")
	case arrived != "":
		return refuse("pod " + arrived + " came to the node meanwhile and uses the volume")
	case len(todo) == 0 && ending > 0:
		return &waiting{reason: ReasonUnstaging, message: fmt.Sprintf("%d evicted pods of node %s have not ended", ending, entry.Node)}
	case len(todo) == 0:
		return p.finish(ctx, entry, node)
	case begun || entry.NoTaint: // new pods may already be on other nodes
		pods = todo
	}
	settings, err := p.readSettings(ctx)
	if err != nil {
		return err
	}
	// Right before each act.
	e, err := p.readEvidence(ctx, entry.Node, pods, entry.Pods, settings)
	switch {
	case err != nil:
		return err
	case e.asked.abnormal == nil:
		return &waiting{reason: ReasonEvicting, message: fmt.Sprintf("node %s did not answer: %s", entry.Node, e.asked.message)}
	}
	if why := e.refused(); why != "" {
		return refuse(why)
	}
	if entry.NoTaint != e.staysStaged() {
		return refuse("something else is wrong now: " + e.asked.message)
	}
	switch tainted := entry.taints(e.node); {
	case begun && !tainted, pastDeadline(entry.Start): // meanwhile
		return nil
	case !tainted:
		err := p.writeTaints(ctx, e.node, append(slices.Clone(e.node.Spec.Taints), taintOf(entry.ClaimUID, entry.Start)))
		if apierrors.IsForbidden(err) || apierrors.IsInvalid(err) {
			return refuse(fmt.Sprintf("taint node %s: %v", entry.Node, err))
		}
		return err
	}
	if !begun { // pods may have come, or budgets changed, before the taint stood
		if err := p.tryEvictions(ctx, e.goes()); err != nil {
			return err
		}
	}
	return p.evictOne(ctx, entry, &e.goes()[0], len(entry.Pods)-len(todo))
}

func (p *pass) evictOne(ctx context.Context, entry ledgerEntry, pod *corev1.Pod, went int) error {
	err := p.eviction(ctx, pod)
	switch why := fmt.Sprintf("evict pod %s: %v", pod.Name, err); {
	case apierrors.IsNotFound(err): // it went by itself
		return nil
	case err != nil && went == 0 && !mayBeDone(err): // nothing has happened yet
		return refuse(why)
	case err != nil:
		return &waiting{reason: ReasonEvicting, message: fmt.Sprintf("%d of %d pods were evicted; %s", went, len(entry.Pods), why)}
	}
	p.tellAlways(pod, p.job, corev1.EventTypeWarning, ReasonEvicting, "evicted: a new pod gets volume "+p.volume.pv.Name+" as it should")
	p.progress(ReasonEvicting, "evicted pod "+pod.Name+" of node "+entry.Node)
	return nil
}

// mayBeDone reports whether the API may have done what it answered with an error, or not at all (also an error of ours): to
// remove the taint while the pod ends would have the new one get the dead superblock.
func mayBeDone(err error) bool {
	var answer apierrors.APIStatus
	return !errors.As(err, &answer) || answer.Status().Code >= http.StatusInternalServerError
}

// tookTooLong names what was waited for, for example a budget that refused the second pod.
func (p *pass) tookTooLong() string {
	why := fmt.Sprintf("it did not end within %v", evictDeadline)
	if last := meta.FindStatusCondition(p.job.Status.Conditions, v1alpha1.ConditionProgressing); last != nil {
		why += "; last: " + last.Message
	}
	return why
}

// progressOf compares the pods of an entry with those that use the volume now: todo are
// still to be evicted, ending is how many end on the node, and arrived is one that was not
// there at the start, which keeps the volume staged where that matters.
func progressOf(entry ledgerEntry, pods []corev1.Pod) (todo []corev1.Pod, ending int, arrived string) {
	for _, pod := range pods {
		switch {
		case pod.Spec.NodeName != entry.Node:
		case !slices.Contains(entry.Pods, pod.UID):
			if !entry.NoTaint {
				return nil, 0, pod.Name
			}
		case pod.DeletionTimestamp != nil:
			ending++
		default:
			todo = append(todo, pod)
		}
	}
	return todo, ending, ""
}

// tryEvictions asks whether all pods may be evicted, without evicting one. The API is asked
// for each, and says yes to two where a budget has room for one.
func (p *pass) tryEvictions(ctx context.Context, pods []corev1.Pod) error {
	for i := range pods {
		switch err := p.eviction(ctx, &pods[i], metav1.DryRunAll); {
		// What the API answers of a pod with two budgets is a 500, too: the one without a reason.
		case err != nil && mayBeDone(err) && (!apierrors.IsInternalError(err) || apierrors.ReasonForError(err) != ""):
			return err
		case apierrors.IsNotFound(err):
			return awaitTurn("pod %s is gone", pods[i].Name)
		case err != nil:
			return refuse(fmt.Sprintf("pod %s may not be evicted: %v", pods[i].Name, err))
		}
	}
	inNamespace := client.ListOptions{Namespace: p.volume.claim.Namespace, Limit: objectsPerPage}
	return list(ctx, p.Reconciler, &policyv1.PodDisruptionBudgetList{}, inNamespace, func(budget *policyv1.PodDisruptionBudget) error {
		selector, err := metav1.LabelSelectorAsSelector(budget.Spec.Selector)
		if err != nil {
			return err
		}
		costs := 0 // pods that are not ready cost nothing
		for i := range pods {
			if ready(&pods[i]) && selector.Matches(labels.Set(pods[i].Labels)) {
				costs++
			}
		}
		if allowed := int(budget.Status.DisruptionsAllowed); costs > allowed {
			return refuse(fmt.Sprintf("PodDisruptionBudget %s allows %d evictions, not %d", budget.Name, allowed, costs))
		}
		return nil
	})
}

// ready reports whether a pod counts for its PodDisruptionBudgets.
func ready(pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool { return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue })
}

// eviction has the API evict a pod, as its PodDisruptionBudgets allow. Another pod of that
// name is not evicted, nor one that changed since it was read: it may ask not to be evicted. The API itself
// does not look at a resourceVersion where the pod is not ready and has a PodDisruptionBudget.
func (p *pass) eviction(ctx context.Context, pod *corev1.Pod, dryRun ...string) error {
	now := &metav1.PartialObjectMetadata{}
	now.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Pod"))
	switch err := p.cfg.Reader.Get(ctx, client.ObjectKeyFromObject(pod), now); {
	case apierrors.IsNotFound(err), apierrors.IsForbidden(err):
		return err
	case err != nil:
		return fmt.Errorf("pod %s could not be read: %s", pod.Name, err.Error()) // no refusal of the eviction, whatever it is
	case now.UID != pod.UID || now.ResourceVersion != pod.ResourceVersion:
		return awaitTurn("pod %s changed since it was read", pod.Name)
	}
	return p.cfg.Writer.SubResource("eviction").Create(ctx, pod.DeepCopy(), &policyv1.Eviction{
		ObjectMeta:    metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name},
		DeleteOptions: &metav1.DeleteOptions{DryRun: dryRun, Preconditions: &metav1.Preconditions{UID: &pod.UID}},
	})
}

// finish ends the eviction of a volume that has to be staged anew once the node has unstaged
// it.
func (p *pass) finish(ctx context.Context, entry ledgerEntry, node *corev1.Node) error {
	if entry.NoTaint {
		return p.settle(ctx, entry, succeeded)
	}
	// Kubelet keeps the list of volumes in use for drivers with attachments only.
	from, driver := p.volume.pv.Spec.CSI, &storagev1.CSIDriver{}
	if err := p.cfg.Reader.Get(ctx, client.ObjectKey{Name: from.Driver}, driver); err != nil {
		return err
	}
	name := corev1.UniqueVolumeName("kubernetes.io/csi/" + from.Driver + "^" + from.VolumeHandle)
	if ptr.Deref(driver.Spec.AttachRequired, true) && slices.Contains(node.Status.VolumesInUse, name) {
		return &waiting{reason: ReasonUnstaging, message: fmt.Sprintf("kubelet of node %s has the volume in use", node.Name)}
	}
	if staged, known, why := p.staged(ctx, node.Name); staged || !known {
		return &waiting{reason: ReasonUnstaging, message: fmt.Sprintf("node %s has the volume staged, or does not answer: %s", node.Name, why)}
	}
	return p.settle(ctx, entry, succeeded)
}

// settle writes the outcome down first: what follows is then only to clean up, whoever
// does it.
func (p *pass) settle(ctx context.Context, entry ledgerEntry, outcome string) error {
	outcome = printable.Line(outcome, maxMessageBytes)
	if err := p.changeEntry(ctx, entry.JobUID, func(e *ledgerEntry) { e.Outcome = outcome }); err != nil {
		return err
	}
	switch {
	case outcome != succeeded:
		p.tellAct(entry, corev1.EventTypeWarning, ReasonEvictionGaveUp, outcome)
	case entry.NoTaint:
		p.tellAct(entry, corev1.EventTypeNormal, ReasonEvicted, fmt.Sprintf("%d evicted pods of node %s have ended", len(entry.Pods), entry.Node))
	default:
		p.tellAct(entry, corev1.EventTypeNormal, ReasonUnstaged, fmt.Sprintf("node %s has unstaged the volume; its taint goes", entry.Node))
	}
	return nil
}

// cleanUp removes the taint of a job that is about to end, whatever ends it.
func (p *pass) cleanUp(ctx context.Context) error {
	all, _, err := p.readLedger(ctx)
	for _, entry := range all {
		if entry.open() && entry.JobUID == p.job.UID {
			return p.clean(ctx, entry)
		}
	}
	return err
}

// tellAct says in the job's status and in events on claim and node what is done.
func (p *pass) tellAct(entry ledgerEntry, level, reason, message string) {
	p.progress(reason, message)
	claim := p.volume.claim
	p.tellAlways(claim, p.job, level, reason, message)
	p.tellAlways(asInEvents(entry.Node), p.job, level, reason, "claim "+claim.Namespace+"/"+claim.Name+": "+message)
}

// asInEvents is a node as events name it: with its name as the UID, as kubelet's do.
func asInEvents(node string) *corev1.Node {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node, UID: types.UID(node)}}
}
