package kube

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	"k8s.io/klog/v2"
)

const (
	// registerTime bounds one request: nobody waits for it.
	registerTime = 10 * time.Second
	// keptTime is how long an object has to stand for the next loss to be made
	// good at once. A controller that cannot reach us deletes it over and over.
	keptTime = 10 * time.Minute
)

// RegistrationConfig says who is registered.
type RegistrationConfig struct {
	// Driver is what GetIdentity answers; the controller compares them.
	Driver string
	// NodeID is this node's name.
	NodeID string
	// Pod, Namespace and PodUID are of the pod that we run in.
	Pod, Namespace, PodUID string
	// Port is where the controller calls, in that pod.
	Port int
}

// Registration keeps the CSIAddonsNode by which the CSI-Addons controller finds
// this server. Make it with NewRegistration.
type Registration struct {
	client  *Client
	cfg     RegistrationConfig
	objects dynamic.ResourceInterface
	// renewed is true once this process has written the object.
	renewed bool
	// said is the last error that was logged.
	said string
}

// NewRegistration checks cfg; nothing is sent yet.
func NewRegistration(c *Client, cfg RegistrationConfig) (*Registration, error) {
	for _, f := range []struct{ name, value string }{
		{"driver", cfg.Driver},
		{"node", cfg.NodeID},
		{"pod", cfg.Pod},
		{"namespace", cfg.Namespace},
		{"pod UID", cfg.PodUID},
	} {
		if f.value == "" {
			return nil, fmt.Errorf("kube: the registration needs a %s", f.name)
		}
	}
	if cfg.Port < 1 || cfg.Port > 65535 {
		return nil, fmt.Errorf("kube: the registration needs a TCP port, not %d", cfg.Port)
	}
	return &Registration{client: c, cfg: cfg, objects: c.dynamic.Resource(csiAddonsNodes).Namespace(cfg.Namespace)}, nil
}

// Run keeps the object until ctx ends, and leaves it where it is: the next pod
// on this node renews it, and it goes with its owner. Between the two the
// controller sees that nobody answers.
func (r *Registration) Run(ctx context.Context) {
	backoff := slowly
	for ctx.Err() == nil {
		start := time.Now()
		err := r.keep(ctx)
		if ctx.Err() != nil {
			return
		}
		r.log(err)
		if err == nil && time.Since(start) >= keptTime {
			backoff = slowly
		}
		pause(ctx, backoff.Step())
	}
}

// slowly goes from a second to five minutes, at which it stays.
var slowly = wait.Backoff{Duration: time.Second, Factor: 2, Jitter: 0.2, Steps: 10, Cap: 5 * time.Minute}

// pause waits, unless ctx ends first.
func pause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// keep writes the object where that is needed, and returns without an error
// when it is time to look again.
func (r *Registration) keep(ctx context.Context) error {
	// Each time: who makes the DaemonSet anew may leave our pod to the new one
	// (kubectl delete --cascade=orphan), and an owner that is gone takes along
	// what it owns.
	owner, err := r.findOwner(ctx)
	if err != nil {
		return err
	}
	wanted := r.cfg.object(*owner, time.Now())
	only := metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector(metav1.ObjectNameField, wanted.GetName()).String()}
	list, err := r.list(ctx, only)
	if err != nil {
		return err
	}
	switch {
	case len(list.Items) == 0:
		err = r.create(ctx, wanted)
	case list.Items[0].GetDeletionTimestamp() != nil:
		// It goes when the controller lets go of it, and comes anew then.
	case !r.renewed:
		err = r.renew(ctx, wanted, &list.Items[0])
	}
	if err != nil {
		return err
	}
	r.said = ""
	only.ResourceVersion = list.GetResourceVersion()
	return r.untilDeleted(ctx, only)
}

// findOwner gives what controls our own pod: its DaemonSet.
func (r *Registration) findOwner(ctx context.Context) (*metav1.OwnerReference, error) {
	var pod corev1.Pod
	if err := r.client.get(ctx, request{Resource: "pods", Namespace: r.cfg.Namespace, Name: r.cfg.Pod}, &pod); err != nil {
		return nil, err
	}
	if string(pod.UID) != r.cfg.PodUID {
		return nil, fmt.Errorf("pod %s in namespace %s has the UID %s, and this one was told that it is %s",
			r.cfg.Pod, r.cfg.Namespace, pod.UID, r.cfg.PodUID)
	}
	owner := metav1.GetControllerOf(&pod)
	if owner == nil {
		return nil, fmt.Errorf("pod %s in namespace %s belongs to no DaemonSet, so that nothing could own its registration",
			r.cfg.Pod, r.cfg.Namespace)
	}
	return owner, nil
}

func (r *Registration) list(ctx context.Context, only metav1.ListOptions) (*unstructured.UnstructuredList, error) {
	ctx, cancel := context.WithTimeout(ctx, registerTime)
	defer cancel()
	list, err := r.objects.List(ctx, only)
	if apierrors.IsNotFound(err) {
		err = fmt.Errorf("the API does not know the kind: the CSI-Addons controller is not installed: %w", err)
	}
	return list, r.explain("list", err)
}

func (r *Registration) create(ctx context.Context, wanted *unstructured.Unstructured) error {
	ctx, cancel := context.WithTimeout(ctx, registerTime)
	defer cancel()
	_, err := r.objects.Create(ctx, wanted, metav1.CreateOptions{})
	return r.written("create", wanted, err)
}

// renew tells the controller that somebody else is here now, if only because
// this is another process.
func (r *Registration) renew(ctx context.Context, wanted, now *unstructured.Unstructured) error {
	ctx, cancel := context.WithTimeout(ctx, registerTime)
	defer cancel()
	change, err := wanted.MarshalJSON()
	if err != nil {
		return fmt.Errorf("encode the registration: %w", err)
	}
	_, err = r.objects.Patch(ctx, wanted.GetName(), types.MergePatchType, change, metav1.PatchOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return nil // deleted a moment ago, as the watch will say
	case apierrors.IsInvalid(err) && identityOf(wanted) != identityOf(now) && haveOneOwner(wanted, now):
		return r.remove(ctx, now)
	case apierrors.IsInvalid(err):
		err = fmt.Errorf("driver and node of a registration never change; after kubectl delete csiaddonsnode -n %s %s it is made anew: %w",
			wanted.GetNamespace(), wanted.GetName(), err)
	}
	return r.written("patch", wanted, err)
}

// remove deletes one of our own that names another driver: --driver-name has
// changed. The watch tells when it is gone, and to make another.
func (r *Registration) remove(ctx context.Context, old *unstructured.Unstructured) error {
	uid, version := old.GetUID(), old.GetResourceVersion()
	err := r.objects.Delete(ctx, old.GetName(), metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &uid, ResourceVersion: &version}})
	if apierrors.IsNotFound(err) {
		return nil
	}
	return r.explain("delete", err)
}

func (r *Registration) written(verb string, wanted *unstructured.Unstructured, err error) error {
	if err != nil {
		return r.explain(verb, err)
	}
	r.renewed = true
	klog.InfoS("Registered for the CSI-Addons controller", "csiAddonsNode", klog.KObj(wanted),
		"endpoint", r.cfg.endpoint(), "verb", verb)
	return nil
}

// untilDeleted watches the object.
func (r *Registration) untilDeleted(ctx context.Context, only metav1.ListOptions) error {
	w, err := r.objects.Watch(ctx, only)
	if err != nil {
		return r.explain("watch", err)
	}
	defer w.Stop()
	for event := range w.ResultChan() {
		switch event.Type {
		case watch.Deleted:
			klog.InfoS("The registration for the CSI-Addons controller was deleted, and is made anew")
			return nil
		case watch.Error:
			// Mostly that the version is too old: the next list has a new one.
			return r.explain("watch", apierrors.FromObject(event.Object))
		default: // others may write into it what they like
		}
	}
	return nil
}

func (r *Registration) explain(verb string, err error) error {
	return r.client.explain(request{
		Verb: verb, Group: csiAddonsNodes.Group, Resource: csiAddonsNodes.Resource, Namespace: r.cfg.Namespace,
	}, err)
}

// log says the same only once, however often it is tried.
func (r *Registration) log(err error) {
	if err == nil || err.Error() == r.said || passing(err) {
		return
	}
	r.said = err.Error()
	klog.ErrorS(err, "Cannot register for the CSI-Addons controller, and goes on trying")
}

// passing is true for what the next try puts right: somebody else wrote at the
// same time, or a list is too old.
func passing(err error) bool {
	return apierrors.IsAlreadyExists(err) || apierrors.IsConflict(err) || apierrors.IsResourceExpired(err)
}
