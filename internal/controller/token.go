package controller

import (
	"context"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/csi-addons/node-healer/pkg/api/registration"
)

// Identity names the pod that this process runs in, and its ServiceAccount.
type Identity struct {
	Namespace, Account, Pod, PodUID string
}

// tokenLife is the shortest that the API gives, and the longest that
// deploy/controller/admission.yaml allows.
const tokenLife = 10 * time.Minute

// makeToken makes the token by which a node's gateway knows the controller, or returns that made
// last. It is good at the gateway of one node, so that whoever took over a node cannot use what
// the controller sent there at another one.
func (g *gateways) makeToken(ctx context.Context, node string) (bearer, error) {
	if made, found := g.tokens.Get(node); found {
		return made.(bearer), nil
	}
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: g.Self.Namespace, Name: g.Self.Account}}
	request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{
		Audiences:         []string{registration.Audience(node)},
		ExpirationSeconds: ptr.To(int64(tokenLife.Seconds())),
		// The token ends with this pod.
		BoundObjectRef: &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Pod", Name: g.Self.Pod, UID: types.UID(g.Self.PodUID)},
	}}
	if err := g.api.SubResource("token").Create(ctx, account, request); err != nil {
		return "", err
	}
	made := bearer(request.Status.Token)
	g.tokens.Set(node, made, tokenLife/2)
	return made, nil
}
