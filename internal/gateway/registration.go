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
	"k8s.io/apimachinery/pkg/types"
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
	// registerInterval is how soon an object is made again that was deleted: a controller that
	// cannot reach the gateway deletes it over and over.
	registerInterval = time.Minute
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
}

// NewRegistration returns a Registration that has sent nothing yet.
func NewRegistration(api *rest.Config, cfg RegistrationConfig) (*Registration, error) {
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
	failures, logged := 0, "" // in a row; the last error
	for ctx.Err() == nil {
		again := retry.WithJitter(registerInterval)
		if err := r.keep(ctx, server); err != nil {
			failures++
			again = retry.Transient.AfterWithJitter(failures)
			if err.Error() != logged && ctx.Err() == nil {
				klog.ErrorS(err, "Cannot register for the CSI-Addons controller, retrying")
			}
			logged = err.Error()
		} else {
			failures, logged = 0, ""
		}
		select {
		case <-ctx.Done():
		case <-time.After(again):
		}
	}
}

// keep writes the object if that is needed: it is not there, was not written by this process, or has
// another certificate than the gateway serves with.
func (r *Registration) keep(ctx context.Context, server grpc.ClientConnInterface) error {
	name, err := r.name(ctx, server)
	if err != nil {
		return err
	}
	pair, err := r.certificates.pair()
	if err != nil {
		return err
	}
	wanted := r.cfg.object(name, pair.Leaf, time.Now())
	reading, cancel := context.WithTimeout(ctx, registerTimeout)
	defer cancel()
	there, err := r.objects.Get(reading, wanted.GetName(), metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return r.write(ctx, "create", wanted)
	case err != nil:
		return fmt.Errorf("get csiaddonsnodes: %w", err)
	case there.GetDeletionTimestamp() != nil:
		return errors.New("the registration is being deleted, and is created again when its finalizers are gone")
	}
	if now, err := registration.Certificate(there.GetAnnotations()); r.renewed && err == nil && now.Equal(pair.Leaf) {
		return nil
	}
	return r.write(ctx, "patch", wanted) // the controller reconnects when an annotation changes
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
	}
	switch {
	case verb == "create" && apierrors.IsNotFound(err):
		return fmt.Errorf("the API does not have the kind: the CSI-Addons controller is not installed: %w", err)
	case err != nil:
		return fmt.Errorf("%s csiaddonsnodes: %w", verb, err)
	}
	r.renewed = true
	klog.InfoS("Registered for the CSI-Addons controller", "csiAddonsNode", klog.KObj(wanted), "endpoint", r.cfg.endpoint(), "verb", verb)
	return nil
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
