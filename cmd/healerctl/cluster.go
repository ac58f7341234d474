package main

import (
	"errors"
	"fmt"
	"net/url"
	"time"

	"github.com/spf13/pflag"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	_ "k8s.io/client-go/plugin/pkg/client/auth/oidc" // the only kind of login that needs code, as in kubectl
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/csi-addons/node-healer/cmd/healerctl/internal/kube"
)

// requestTimeout bounds one request to the API, and one list of the node's server.
const requestTimeout = 30 * time.Second

// clusterFlags say which cluster, as kubectl's flags of these names do.
type clusterFlags struct{ kubeconfig, context, namespace string }

func (f *clusterFlags) add(flags *pflag.FlagSet) {
	flags.StringVar(&f.kubeconfig, "kubeconfig", "", "`file` that says how to reach the Kubernetes API; empty: as kubectl finds it, else the pod's service account")
	flags.StringVar(&f.context, "context", "", "`name` of the kubeconfig's context to use")
	flags.StringVarP(&f.namespace, "namespace", "n", "", "the claim's `namespace`; empty: that of the context")
}

// setOf returns those of these flags that were set.
func setOf(flags *pflag.FlagSet, names ...string) (set []string) {
	for _, name := range names {
		if flags.Changed(name) {
			set = append(set, "--"+name)
		}
	}
	return set
}

// connect returns the API, and the namespace.
func (f *clusterFlags) connect() (kube.Client, string, error) {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = f.kubeconfig
	from := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, &clientcmd.ConfigOverrides{
		CurrentContext: f.context, Context: clientcmdapi.Context{Namespace: f.namespace},
	})
	cfg, err := from.ClientConfig()
	if clientcmd.IsEmptyConfig(err) {
		err = errors.New("there is no kubeconfig, which says where the cluster is: name one by --kubeconfig or KUBECONFIG; on a node, root names the volume of a claim as NAMESPACE/NAME")
	}
	if err != nil {
		return kube.Client{}, "", status.Error(codes.Unavailable, err.Error())
	}
	namespace, _, err := from.Namespace()
	if err != nil {
		return kube.Client{}, "", err
	}
	cfg.Timeout = requestTimeout
	cfg.WarningHandler = rest.NoWarnings{} // what a server says goes to no terminal unread
	client, err := kube.New(cfg)
	return client, namespace, err
}

// refused returns an error of the API as one that a command got. Who needs which right is
// in the API's own text.
func refused(err error) error {
	code, text := codes.Unavailable, err.Error()
	var sent *url.Error
	switch {
	case errors.As(err, &sent):
		text = fmt.Sprintf("the Kubernetes API does not answer: %s", sent.Err)
	case apierrors.IsUnauthorized(err):
		text = "the Kubernetes API does not accept the credentials of the kubeconfig: they may have expired"
	case kube.UnknownKind(err):
		text = "the cluster does not know VolumeHealJobs: install the controller (deploy/controller)"
	case apierrors.IsNotFound(err):
		code = codes.NotFound
	case apierrors.IsInvalid(err) || apierrors.IsBadRequest(err):
		code = codes.InvalidArgument
	}
	return status.Error(code, text)
}
