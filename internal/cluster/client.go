package cluster

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

const (
	// requestTimeout bounds one request: a step waits for it.
	requestTimeout = 2 * time.Second

	protobuf = "application/vnd.kubernetes.protobuf"
)

// client sends requests to the API for the few kinds that this program needs.
// The usual clientset knows every kind, which costs memory on every node.
type client struct {
	core rest.Interface
}

// newClient returns a client that has not sent anything yet.
func newClient(cfg Config) (*client, error) {
	var access *rest.Config
	var err error
	switch {
	case cfg.Access != nil:
		access = rest.CopyConfig(cfg.Access)
	case cfg.Kubeconfig != "":
		access, err = clientcmd.BuildConfigFromFlags("", cfg.Kubeconfig)
	default:
		access, err = rest.InClusterConfig()
	}
	if err != nil {
		return nil, fmt.Errorf("find the Kubernetes API: %w", err)
	}
	access.UserAgent = "node-healer/" + cfg.Version
	// Callers limit their own rates (running heals, the reporter): a limit here
	// would look like an API that does not answer.
	access.QPS = -1
	scheme := runtime.NewScheme()
	if err := errors.Join(corev1.AddToScheme(scheme), storagev1.AddToScheme(scheme)); err != nil {
		return nil, err
	}
	access.GroupVersion, access.APIPath = &corev1.SchemeGroupVersion, "/api"
	access.NegotiatedSerializer = serializer.NewCodecFactory(scheme).WithoutConversion()
	access.ContentType, access.AcceptContentTypes = protobuf, protobuf+",application/json"
	core, err := rest.RESTClientFor(access)
	if err != nil {
		return nil, fmt.Errorf("connect to the Kubernetes API: %w", err)
	}
	return &client{core}, nil
}

func (c *client) on(r request, verb *rest.Request) *rest.Request {
	if r.Group != "" {
		verb = verb.AbsPath("/apis", r.Group, "v1")
	}
	verb = verb.NamespaceIfScoped(r.Namespace, r.Namespace != "").Resource(r.Resource)
	if r.Name != "" {
		verb = verb.Name(r.Name)
	}
	return verb
}

// do sends a request for one object and reads what the API then has of it.
func (c *client) do(ctx context.Context, r request, verb *rest.Request, into runtime.Object) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	return explain(r, c.on(r, verb).Do(ctx).Into(into))
}

// request names what is asked of the API in RBAC's words.
type request struct {
	Verb string
	schema.GroupResource
	Namespace string // empty: cluster-scoped, or all namespaces
	Name      string
}

// shown returns a request without the names of what belongs to one tenant, or of a Secret. The
// text of its error may be shown to another one: a search reads the claims of all pods here, and
// an API that does not answer is not asked again for others.
func (r request) shown() request {
	if r.Verb == "get" && slices.Contains([]string{"pods", "persistentvolumeclaims", "namespaces", "secrets"}, r.Resource) {
		r.Namespace, r.Name = "", ""
	}
	return r
}

// String returns, for example, "get pods in namespace x" or "list persistentvolumes".
func (r request) String() string {
	text := r.Verb + " " + r.GroupResource.String()
	if r.Namespace != "" {
		text += " in namespace " + r.Namespace
	}
	return text
}
