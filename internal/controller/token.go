package controller

import (
	"context"
	"maps"
	"sync"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/csi-addons/node-healer/pkg/api/registration"
)

// Identity names the pod that this process runs in, and its ServiceAccount.
type Identity struct {
	Namespace, Account, Pod, PodUID string
}

// tokenLife is the shortest that the API gives, and the longest that
// deploy/controller/admission.yaml allows.
const tokenLife = 10 * time.Minute

// tokens makes the tokens by which gateways know the controller. Each is good at the
// gateway of one node, so that whoever took over a node cannot use what the controller
// sent there at another one.
type tokens struct {
	api  client.SubResourceClientConstructor
	self Identity

	mu sync.Mutex
	// byNode has those that are not to be made again yet.
	byNode map[string]nodeToken
}

type nodeToken struct {
	bearer bearer
	// renewAt is half the token's life after it was asked for.
	renewAt time.Time
}

// forNode returns a token for a node's gateway.
func (t *tokens) forNode(ctx context.Context, node string) (bearer, error) {
	now := time.Now()
	t.mu.Lock()
	// Nodes that are gone do not stay in the map.
	maps.DeleteFunc(t.byNode, func(_ string, made nodeToken) bool { return !now.Before(made.renewAt) })
	made, found := t.byNode[node]
	t.mu.Unlock()
	if found {
		return made.bearer, nil
	}
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: t.self.Namespace, Name: t.self.Account}}
	request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{
		Audiences:         []string{registration.Audience(node)},
		ExpirationSeconds: ptr.To(int64(tokenLife.Seconds())),
		// The token ends with this pod.
		BoundObjectRef: &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Pod", Name: t.self.Pod, UID: types.UID(t.self.PodUID)},
	}}
	if err := t.api.SubResource("token").Create(ctx, account, request); err != nil {
		return "", err
	}
	made = nodeToken{bearer(request.Status.Token), now.Add(tokenLife / 2)}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.byNode[node] = made
	return made.bearer, nil
}
