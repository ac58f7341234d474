package kube

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

const (
	// askTime bounds one question to the API: a step waits for it.
	askTime = 2 * time.Second

	protobuf = "application/vnd.kubernetes.protobuf"
)

// Client speaks to the API with the few groups that this program needs. The
// usual clientset knows every kind there is, which costs memory on every node.
type Client struct {
	groups   map[string]rest.Interface
	metadata metadata.Interface
	// account is who we are, for advice to a person.
	account string
}

// ClientConfig says how to reach the API.
type ClientConfig struct {
	// Kubeconfig is a file; empty: the service account of the pod we run in.
	Kubeconfig string
	// Version goes into the user agent.
	Version string
}

// NewClient reads the configuration; nothing is sent yet.
func NewClient(cfg ClientConfig) (*Client, error) {
	access, err := rest.InClusterConfig()
	if cfg.Kubeconfig != "" {
		access, err = clientcmd.BuildConfigFromFlags("", cfg.Kubeconfig)
	}
	if err != nil {
		return nil, fmt.Errorf("find the Kubernetes API: %w", err)
	}
	access.UserAgent = "node-healer/" + cfg.Version
	// Whoever asks bounds himself (heals under way, the reporter's pace): a limit
	// here would look like an API that does not answer.
	access.QPS = -1
	wire, err := rest.HTTPClientFor(access)
	if err != nil {
		return nil, fmt.Errorf("connect to the Kubernetes API: %w", err)
	}
	return newClient(access, wire, subjectOf(access.BearerToken))
}

// subjectOf reads from a service account's token whose it is; empty for a token
// of another kind. Nothing is decided by it.
func subjectOf(token string) string {
	var claims struct {
		Subject string `json:"sub"`
	}
	if !readClaims(token, &claims) || !strings.HasPrefix(claims.Subject, "system:serviceaccount:") {
		return ""
	}
	return claims.Subject
}

// readClaims reads what a JWT (RFC 7519) says of itself. Nobody has checked its
// signature.
func readClaims(token string, claims any) bool {
	parts := strings.Split(token, ".")
	if len(parts) != 3 {
		return false
	}
	payload, err := base64.RawURLEncoding.DecodeString(parts[1])
	return err == nil && json.Unmarshal(payload, claims) == nil
}

func newClient(access *rest.Config, wire *http.Client, account string) (*Client, error) {
	c := &Client{groups: map[string]rest.Interface{}, account: account}
	scheme := runtime.NewScheme()
	var errs []error
	for _, group := range []struct {
		version schema.GroupVersion
		add     func(*runtime.Scheme) error
	}{
		{corev1.SchemeGroupVersion, corev1.AddToScheme},
		{storagev1.SchemeGroupVersion, storagev1.AddToScheme},
	} {
		errs = append(errs, group.add(scheme))
		own := rest.CopyConfig(access)
		own.GroupVersion, own.APIPath = &group.version, "/apis"
		if group.version.Group == "" {
			own.APIPath = "/api"
		}
		own.NegotiatedSerializer = serializer.NewCodecFactory(scheme).WithoutConversion()
		own.ContentType, own.AcceptContentTypes = protobuf, protobuf+",application/json"
		client, err := rest.RESTClientForConfigAndClient(own, wire)
		errs = append(errs, err)
		c.groups[group.version.Group] = client
	}
	var err error
	c.metadata, err = metadata.NewForConfigAndClient(metadata.ConfigFor(access), wire)
	return c, errors.Join(append(errs, err)...)
}

func (c *Client) on(r request, verb *rest.Request) *rest.Request {
	verb = verb.NamespaceIfScoped(r.Namespace, r.Namespace != "").Resource(r.Resource)
	if r.Name != "" {
		verb = verb.Name(r.Name)
	}
	if r.Subresource != "" {
		verb = verb.SubResource(r.Subresource)
	}
	return verb
}

// get reads one object as it is now, past every cache.
func (c *Client) get(ctx context.Context, r request, into runtime.Object) error {
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	r.Verb = "get"
	return c.explain(r, c.on(r, c.groups[r.Group].Get()).Do(ctx).Into(into))
}

// create sends an object and reads the answer into it.
func (c *Client) create(ctx context.Context, r request, object runtime.Object) error {
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	r.Verb = "create"
	return c.explain(r, c.on(r, c.groups[r.Group].Post()).Body(object).Do(ctx).Into(object))
}

// patch changes an object; into gets what became of it.
func (c *Client) patch(ctx context.Context, r request, kind types.PatchType, change []byte, into runtime.Object) error {
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	r.Verb = "patch"
	return c.explain(r, c.on(r, c.groups[r.Group].Patch(kind)).Body(change).Do(ctx).Into(into))
}

// list reads one page of a list. Whoever asks brings a deadline.
func (c *Client) list(ctx context.Context, r request, o metav1.ListOptions, into runtime.Object) error {
	r.Verb = "list"
	return c.explain(r, c.on(r, c.groups[r.Group].Get()).VersionedParams(&o, metav1.ParameterCodec).Do(ctx).Into(into))
}
