package gateway

import (
	"context"
	"crypto/x509"
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
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"

	"github.com/csi-addons/node-healer/internal/retry"
	"github.com/csi-addons/node-healer/pkg/api/forwarded"
	"github.com/csi-addons/node-healer/pkg/api/registration"
)

const (
	// registerTimeout bounds one request to the API or the server.
	registerTimeout = 10 * time.Second
	// stableAfter is how long an object must exist for the backoff to start anew. A
	// controller that cannot reach the gateway deletes it over and over.
	stableAfter = 10 * time.Minute
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
	// Pod, Namespace and PodUID are of the pod that this process runs in, which owns
	// the object: it is deleted with the pod.
	Pod, Namespace, PodUID string
	// Port is the TCP port in that pod which the controller calls.
	Port int
}

// Registration maintains the CSIAddonsNode by which the CSI-Addons controller finds
// this node's server. Make it with NewRegistration.
type Registration struct {
	cfg     RegistrationConfig
	objects dynamic.ResourceInterface
	// certificates are what the gateway serves with; New sets them.
	certificates *certificates
	// renewed is true once this process has written the object.
	renewed bool
	// logged is the last error that was logged.
	logged string
}

// NewRegistration checks cfg and sends nothing yet.
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
	return &Registration{cfg: cfg, objects: client.Resource(registration.CSIAddonsNodes).Namespace(cfg.Namespace)}, nil
}

// Run maintains the object until ctx ends, and does not delete it then: it is deleted
// with the pod. A server that does not answer is not registered, because the
// controller never retries one that it could not reach.
func (r *Registration) Run(ctx context.Context, server grpc.ClientConnInterface) {
	failures := 0 // in a row; that the object was deleted is one
	for ctx.Err() == nil {
		began := time.Now()
		err := r.keep(ctx, server)
		if ctx.Err() != nil {
			return
		}
		if err != nil && err.Error() != r.logged { // repetitions are logged once
			r.logged = err.Error()
			klog.ErrorS(err, "Cannot register for the CSI-Addons controller, retrying")
		}
		if err == nil && time.Since(began) >= stableAfter {
			failures = 0
		}
		failures++
		select {
		case <-ctx.Done():
		case <-time.After(retry.Transient.AfterWithJitter(failures)):
		}
	}
}

// keep writes the object if that is needed and watches it. It returns nil when the
// object has to be checked again.
func (r *Registration) keep(ctx context.Context, server grpc.ClientConnInterface) error {
	name, err := r.name(ctx, server)
	if err != nil {
		return err
	}
	certificate, err := r.certificates.leaf()
	if err != nil {
		return err
	}
	wanted := r.cfg.object(name, certificate, time.Now())
	only := metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector(metav1.ObjectNameField, wanted.GetName()).String()}
	listing, cancel := context.WithTimeout(ctx, registerTimeout)
	defer cancel()
	list, err := r.objects.List(listing, only)
	switch {
	case apierrors.IsNotFound(err):
		return fmt.Errorf("the API does not have the kind: the CSI-Addons controller is not installed: %w", err)
	case err != nil:
		return fmt.Errorf("list csiaddonsnodes: %w", err)
	case len(list.Items) == 0:
		err = r.write(ctx, "create", wanted)
	case list.Items[0].GetDeletionTimestamp() != nil:
		// Created again when the controller has removed its finalizer.
	case !r.renewed:
		// The controller reconnects when an annotation changes.
		err = r.write(ctx, "patch", wanted)
	}
	if err != nil {
		return err
	}
	r.logged = ""
	only.ResourceVersion = list.GetResourceVersion()
	return r.untilDeleted(ctx, only)
}

// name returns the name to register. It asks the server for its own in any case, which
// shows that the server answers.
func (r *Registration) name(ctx context.Context, server grpc.ClientConnInterface) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, registerTimeout)
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

func (r *Registration) write(ctx context.Context, verb string, wanted *unstructured.Unstructured) error {
	ctx, cancel := context.WithTimeout(ctx, registerTimeout)
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
			return nil // deleted meanwhile, which the watch reports
		}
	}
	if err != nil {
		return fmt.Errorf("%s csiaddonsnodes: %w", verb, err)
	}
	r.renewed = true
	klog.InfoS("Registered for the CSI-Addons controller", "csiAddonsNode", klog.KObj(wanted), "endpoint", r.cfg.endpoint(), "verb", verb)
	return nil
}

// untilDeleted watches the object. It returns nil when it was deleted, the watch ended or
// the certificate was replaced.
func (r *Registration) untilDeleted(ctx context.Context, only metav1.ListOptions) error {
	w, err := r.objects.Watch(ctx, only)
	if err != nil {
		return fmt.Errorf("watch csiaddonsnodes: %w", err)
	}
	defer context.AfterFunc(ctx, w.Stop)()
	defer w.Stop()
	for {
		var event watch.Event
		var open bool
		select {
		case <-r.certificates.changed:
			r.renewed = false
			return nil
		case event, open = <-w.ResultChan():
		}
		if !open {
			return nil
		}
		switch event.Type {
		case watch.Deleted:
			klog.InfoS("The registration for the CSI-Addons controller was deleted, creating it again")
			return nil
		case watch.Error:
			// Mostly a resource version that is too old: the next list has a new one.
			return fmt.Errorf("watch csiaddonsnodes: %w", apierrors.FromObject(event.Object))
		default: // changes by others stay
		}
	}
}

const (
	// The controller reconnects when an annotation changes, as lastUpdatedAt does with
	// every start. The names are the CSI-Addons sidecar's.
	createdByAnnotation = "sidecar.csiaddons.openshift.io/createdByPodUID"
	updatedAtAnnotation = "sidecar.csiaddons.openshift.io/lastUpdatedAt"
)

// endpoint returns a URL that the controller resolves to the pod's address.
func (c RegistrationConfig) endpoint() string {
	return fmt.Sprintf("pod://%s.%s:%d", c.Pod, c.Namespace, c.Port)
}

// object returns the CSIAddonsNode, which is also a merge patch: what others wrote,
// such as the controller's finalizer and status, stays. The certificate is what the
// gateway serves with.
func (c RegistrationConfig) object(name string, certificate *x509.Certificate, now time.Time) *unstructured.Unstructured {
	node := &unstructured.Unstructured{Object: map[string]any{
		"spec": map[string]any{
			"driver": map[string]any{"name": name, "nodeID": c.Node, "endpoint": c.endpoint()},
		},
	}}
	node.SetGroupVersionKind(registration.CSIAddonsNodes.GroupVersion().WithKind(registration.Kind))
	node.SetNamespace(c.Namespace)
	node.SetName(registration.ObjectName(c.Node, name))
	annotations := registration.Annotations(certificate)
	annotations[createdByAnnotation], annotations[updatedAtAnnotation] = c.PodUID, now.UTC().Format(time.RFC3339)
	node.SetAnnotations(annotations)
	// Deleted with the pod that serves it: a node that is removed leaves nothing.
	node.SetOwnerReferences([]metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: c.Pod, UID: types.UID(c.PodUID)}})
	return node
}
