package kube

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/klog/v2"
)

// What callers are judged by: a resource that exists in RBAC rules only.
const (
	healerGroup    = "csi-addons.io"
	healerResource = "nodehealers"
)

const (
	// keepYes is how long what the API allowed is allowed without asking again:
	// as long may pass until a right that was taken away is gone.
	keepYes = 10 * time.Second
	// keepNo is short: whoever mends the rights tries again at once.
	keepNo = 2 * time.Second
	// reviewTime bounds the wait for one answer of the API, and for the turn to
	// ask it.
	reviewTime = 5 * time.Second
	// maxReviews is the number of questions under way in each of the lanes: the
	// API has others to serve.
	maxReviews = 8
	// maxAnswers bounds what is remembered of tokens, and of what they may do.
	maxAnswers = 512
)

// Reviews asks the API who a token belongs to, and what its bearer may do.
type Reviews interface {
	CreateTokenReview(context.Context, *authenticationv1.TokenReview) (*authenticationv1.TokenReview, error)
	CreateSubjectAccessReview(context.Context, *authorizationv1.SubjectAccessReview) (*authorizationv1.SubjectAccessReview, error)
}

// ReviewerConfig is everything a Reviewer needs.
type ReviewerConfig struct {
	Reviews Reviews
	// Audience is what tokens have to be for; empty: the API server itself,
	// which is what a service account's token is for by default.
	Audience string
	// Node is this node's name, which rules may be limited to.
	Node string
}

// Reviewer judges the bearers of tokens by the API's word. Without that, nobody
// is let in.
type Reviewer struct {
	cfg ReviewerConfig
	// key makes what is remembered of a token worthless elsewhere.
	key   []byte
	lanes *lanes

	bearers answers[tokenKey, authenticationv1.UserInfo]
	rights  answers[right, struct{}]
	trouble trouble
}

type tokenKey [sha256.Size]byte

type right struct {
	token tokenKey
	verb  string
}

// asker is for whom the API is asked.
type asker struct {
	key    tokenKey
	source string
}

// NewReviewer checks the configuration.
func NewReviewer(cfg ReviewerConfig) (*Reviewer, error) {
	switch {
	case cfg.Reviews == nil:
		return nil, errors.New("kube: a reviewer needs somebody to ask")
	case cfg.Node == "":
		return nil, errors.New("kube: a reviewer needs the node's name")
	}
	key := make([]byte, sha256.Size)
	if _, err := rand.Read(key); err != nil {
		return nil, fmt.Errorf("make a reviewer's key: %w", err)
	}
	return &Reviewer{cfg: cfg, key: key, lanes: newLanes()}, nil
}

// Authorize says why the bearer of a token may not do on this node what the verb
// names. The text is for that caller: it holds nothing of the token, and nothing
// of the cluster that it has no business with. source is where the call comes
// from; strangers from one share what they may have asked of the API.
func (r *Reviewer) Authorize(ctx context.Context, source, token, verb string) error {
	who := asker{r.keyOf(token), source}
	user, err := r.bearers.get(ctx, who.key, func(ctx context.Context) (authenticationv1.UserInfo, time.Duration, error) {
		return r.reviewToken(ctx, who, token)
	})
	if err != nil {
		return err
	}
	_, err = r.rights.get(ctx, right{who.key, verb}, func(ctx context.Context) (struct{}, time.Duration, error) {
		keep, err := r.reviewAccess(ctx, who, user, verb)
		return struct{}{}, keep, err
	})
	if err != nil {
		return err
	}
	r.lanes.remember(who.key)
	return nil
}

func (r *Reviewer) keyOf(token string) (key tokenKey) {
	h := hmac.New(sha256.New, r.key)
	h.Write([]byte(token))
	copy(key[:], h.Sum(nil))
	return key
}

func (r *Reviewer) reviewToken(ctx context.Context, who asker, token string) (user authenticationv1.UserInfo, keep time.Duration, err error) {
	question := &authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{Token: token}}
	if r.cfg.Audience != "" {
		question.Spec.Audiences = []string{r.cfg.Audience}
	}
	var answer *authenticationv1.TokenReview
	err = r.ask(ctx, who, func(ctx context.Context) (err error) {
		answer, err = r.cfg.Reviews.CreateTokenReview(ctx, question)
		return err
	})
	if err != nil {
		return user, 0, err
	}
	status := answer.Status
	switch {
	case !status.Authenticated:
		return user, keepNo, r.refused(status.Error)
	case r.cfg.Audience != "" && !slices.Contains(status.Audiences, r.cfg.Audience):
		// An authenticator that knows nothing of audiences says yes to any.
		return user, keepNo, r.refused("")
	}
	return status.User, keepUntil(token, time.Now()), nil
}

func (r *Reviewer) reviewAccess(ctx context.Context, who asker, user authenticationv1.UserInfo, verb string) (keep time.Duration, err error) {
	question := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
		ResourceAttributes: &authorizationv1.ResourceAttributes{
			Group: healerGroup, Resource: healerResource, Verb: verb, Name: r.cfg.Node,
		},
		User: user.Username, UID: user.UID, Groups: user.Groups, Extra: map[string]authorizationv1.ExtraValue{},
	}}
	for name, values := range user.Extra {
		question.Spec.Extra[name] = authorizationv1.ExtraValue(values)
	}
	var answer *authorizationv1.SubjectAccessReview
	err = r.ask(ctx, who, func(ctx context.Context) (err error) {
		answer, err = r.cfg.Reviews.CreateSubjectAccessReview(ctx, question)
		return err
	})
	switch {
	case err != nil:
		return 0, err
	case !answer.Status.Allowed:
		return keepNo, r.forbidden(user.Username, verb)
	}
	return keepYes, nil
}

// ask waits for a turn and puts one question. Its end is its own: others may
// wait for the same answer when the first caller has gone.
func (r *Reviewer) ask(ctx context.Context, who asker, put func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), reviewTime)
	defer cancel()
	// client-go logs what it sends, with the token in it, from -v=8.
	ctx = klog.NewContext(ctx, klog.Logger{})
	leave, err := r.lanes.enter(ctx, who)
	if err != nil {
		return err
	}
	defer leave()
	if err = put(ctx); err == nil {
		return nil
	}
	r.trouble.log(err)
	if apierrors.IsForbidden(err) || apierrors.IsUnauthorized(err) {
		return errors.New("the Kubernetes API does not let this server ask about callers: its log says what is missing")
	}
	return errors.New("the Kubernetes API cannot be asked about callers now, so none is let in: try again")
}

// trouble logs what goes wrong with the API, but not for each caller.
type trouble struct {
	mu   sync.Mutex
	next time.Time
}

const troubleEvery = 10 * time.Second

func (t *trouble) log(err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if now := time.Now(); now.After(t.next) {
		t.next = now.Add(troubleEvery)
		klog.Background().Error(err, "Cannot ask the API about a caller, who is refused")
	}
}
