package gateway

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/csi-addons/spec/lib/go/identity"
	"google.golang.org/grpc"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"

	"github.com/csi-addons/node-healer/pkg/api/forwarded"
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
	// As is the name to register under; empty: the one that the server answers to
	// GetIdentity, which is its own. A CSI driver's name belongs here only if this
	// pod runs in the namespace of that driver: the CSI-Addons controller looks
	// for the driver's leader in the namespace of any registration of that name.
	As string
	// Node is this node's name.
	Node string
	// Pod, Namespace and PodUID are of the pod that we run in, which owns the
	// object: it goes with the pod.
	Pod, Namespace, PodUID string
	// Port is where the controller calls, in that pod.
	Port int
}

// Registration keeps the CSIAddonsNode by which the CSI-Addons controller finds
// this node's server. Make it with NewRegistration.
type Registration struct {
	cfg     RegistrationConfig
	objects dynamic.ResourceInterface
	// renewed is true once this process has written the object.
	renewed bool
	// logged is the last error that was logged.
	logged string
}

// NewRegistration checks cfg; nothing is sent yet.
func NewRegistration(api *rest.Config, cfg RegistrationConfig) (*Registration, error) {
	for _, f := range []struct{ name, value string }{
		{"node", cfg.Node}, {"pod", cfg.Pod}, {"namespace", cfg.Namespace}, {"pod UID", cfg.PodUID},
	} {
		if f.value == "" {
			return nil, fmt.Errorf("gateway: the registration needs a %s", f.name)
		}
	}
	if cfg.Port < 1 || cfg.Port > 65535 {
		return nil, fmt.Errorf("gateway: the registration needs a TCP port, not %d", cfg.Port)
	}
	client, err := dynamic.NewForConfig(api)
	if err != nil {
		return nil, fmt.Errorf("gateway: %w", err)
	}
	return &Registration{cfg: cfg, objects: client.Resource(csiAddonsNodes).Namespace(cfg.Namespace)}, nil
}

// Run keeps the object until ctx ends, and leaves it where it is: it goes with
// the pod. A server that does not answer is not registered, because the
// controller gives up for good on one that it does not reach.
func (r *Registration) Run(ctx context.Context, server grpc.ClientConnInterface) {
	// From a second to five minutes, at which it stays.
	slowly := wait.Backoff{Duration: time.Second, Factor: 2, Jitter: 0.2, Steps: 10, Cap: 5 * time.Minute}
	pause := slowly
	for ctx.Err() == nil {
		start := time.Now()
		err := r.keep(ctx, server)
		if ctx.Err() != nil {
			return
		}
		r.log(err)
		if err == nil && time.Since(start) >= keptTime {
			pause = slowly
		}
		select {
		case <-ctx.Done():
		case <-time.After(pause.Step()):
		}
	}
}

// keep writes the object where that is needed, and returns without an error when
// it is time to look again.
func (r *Registration) keep(ctx context.Context, server grpc.ClientConnInterface) error {
	name, err := r.name(ctx, server)
	if err != nil {
		return err
	}
	wanted := r.cfg.object(name, time.Now())
	only := metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector(metav1.ObjectNameField, wanted.GetName()).String()}
	list, err := r.list(ctx, only)
	if err != nil {
		return err
	}
	switch {
	case len(list.Items) == 0:
		err = r.write(ctx, "create", wanted)
	case list.Items[0].GetDeletionTimestamp() != nil:
		// It goes when the controller lets go of it, and comes anew then.
	case !r.renewed:
		// The controller connects anew when an annotation changes.
		err = r.write(ctx, "patch", wanted)
	}
	if err != nil {
		return err
	}
	r.logged = ""
	only.ResourceVersion = list.GetResourceVersion()
	return r.untilDeleted(ctx, only)
}

// name asks the server what it calls itself, whatever is registered: so it is
// seen to be there.
func (r *Registration) name(ctx context.Context, server grpc.ClientConnInterface) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, registerTime)
	defer cancel()
	ctx = caller{name: "node-healer-gateway", verb: forwarded.VerbCheck}.as(ctx)
	who, err := identity.NewIdentityClient(server).GetIdentity(ctx, &identity.GetIdentityRequest{})
	switch {
	case err != nil:
		return "", fmt.Errorf("ask the server for its name: %w", err)
	case r.cfg.As != "":
		return r.cfg.As, nil
	case who.GetName() == "":
		return "", errors.New("the server has no name")
	}
	return who.GetName(), nil
}

func (r *Registration) list(ctx context.Context, only metav1.ListOptions) (*unstructured.UnstructuredList, error) {
	ctx, cancel := context.WithTimeout(ctx, registerTime)
	defer cancel()
	list, err := r.objects.List(ctx, only)
	switch {
	case apierrors.IsNotFound(err):
		return nil, fmt.Errorf("the API does not know the kind: the CSI-Addons controller is not installed: %w", err)
	case err != nil:
		return nil, fmt.Errorf("list csiaddonsnodes: %w", err)
	}
	return list, nil
}

func (r *Registration) write(ctx context.Context, verb string, wanted *unstructured.Unstructured) error {
	ctx, cancel := context.WithTimeout(ctx, registerTime)
	defer cancel()
	var err error
	if verb == "create" {
		_, err = r.objects.Create(ctx, wanted, metav1.CreateOptions{})
	} else {
		var change []byte
		if change, err = wanted.MarshalJSON(); err == nil {
			_, err = r.objects.Patch(ctx, wanted.GetName(), types.MergePatchType, change, metav1.PatchOptions{})
		}
		if apierrors.IsNotFound(err) {
			return nil // deleted a moment ago, as the watch will say
		}
	}
	if err != nil {
		return fmt.Errorf("%s csiaddonsnodes: %w", verb, err)
	}
	r.renewed = true
	klog.InfoS("Registered for the CSI-Addons controller", "csiAddonsNode", klog.KObj(wanted), "endpoint", r.cfg.endpoint(), "verb", verb)
	return nil
}

// untilDeleted watches the object.
func (r *Registration) untilDeleted(ctx context.Context, only metav1.ListOptions) error {
	w, err := r.objects.Watch(ctx, only)
	if err != nil {
		return fmt.Errorf("watch csiaddonsnodes: %w", err)
	}
	defer context.AfterFunc(ctx, w.Stop)()
	defer w.Stop()
	for event := range w.ResultChan() {
		switch event.Type {
		case watch.Deleted:
			klog.InfoS("The registration for the CSI-Addons controller was deleted, and is made anew")
			return nil
		case watch.Error:
			// Mostly that the version is too old: the next list has a new one.
			return fmt.Errorf("watch csiaddonsnodes: %w", apierrors.FromObject(event.Object))
		default: // others may write into it what they like
		}
	}
	return nil
}

// log says the same only once, however often it is tried, and nothing of what the
// next try puts right: somebody else wrote at the same time, or a list is too old.
func (r *Registration) log(err error) {
	if err == nil || err.Error() == r.logged ||
		apierrors.IsAlreadyExists(err) || apierrors.IsConflict(err) || apierrors.IsResourceExpired(err) {
		return
	}
	r.logged = err.Error()
	klog.ErrorS(err, "Cannot register for the CSI-Addons controller, and goes on trying")
}
