package gateway

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"time"

	"golang.org/x/time/rate"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/token/cache"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/authorization/authorizerfactory"
	"k8s.io/apiserver/plugin/pkg/authenticator/token/webhook"
	authenticationclient "k8s.io/client-go/kubernetes/typed/authentication/v1"
	authorizationclient "k8s.io/client-go/kubernetes/typed/authorization/v1"
	"k8s.io/client-go/rest"

	"github.com/csi-addons/node-healer/pkg/api/forwarded"
	"github.com/csi-addons/node-healer/pkg/api/healerpb"
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
	// reviewTime bounds the wait for one answer of the API.
	reviewTime = 5 * time.Second
	// reviewsPerSecond bounds how many tokens the API is asked about, reviewBurst
	// how many at once: anybody who connects can make tokens up.
	reviewsPerSecond = 20
	reviewBurst      = 50
)

// Callers judges callers by the word of the Kubernetes API: who a token belongs
// to, and what its bearer may do on this node. Make it with NewCallers.
type Callers struct {
	node, audience string
	tokens         authenticator.Token
	rights         authorizer.Authorizer
}

// caller is one who was let in.
type caller struct {
	name string
	// verb is what the API lets the caller do.
	verb string
}

// NewCallers makes what asks the API. node is this node's name, which roles may
// be limited to; audience is what tokens have to be for, empty: the API server,
// which is what a service account's token is for by default.
func NewCallers(api *rest.Config, node, audience string) (*Callers, error) {
	if node == "" {
		return nil, errors.New("gateway: callers are judged by the node's name, which is missing")
	}
	authentication, err := authenticationclient.NewForConfig(api)
	if err != nil {
		return nil, fmt.Errorf("gateway: %w", err)
	}
	authorization, err := authorizationclient.NewForConfig(api)
	if err != nil {
		return nil, fmt.Errorf("gateway: %w", err)
	}
	once := wait.Backoff{Steps: 1} // callers try again by themselves
	reviews, err := webhook.NewFromInterface(authentication, nil, once, reviewTime, webhook.AuthenticatorMetrics{
		RecordRequestTotal:   func(context.Context, string) {},
		RecordRequestLatency: func(context.Context, string, float64) {},
	})
	if err != nil {
		return nil, fmt.Errorf("gateway: %w", err)
	}
	rights, err := authorizerfactory.DelegatingAuthorizerConfig{
		SubjectAccessReviewClient: authorization, AllowCacheTTL: keepYes, DenyCacheTTL: keepNo, WebhookRetryBackoff: &once,
	}.New()
	if err != nil {
		return nil, fmt.Errorf("gateway: %w", err)
	}
	// These are the parts of authenticatorfactory's delegating authenticator, with
	// the limit between cache and API, where a token that is known costs nothing.
	limited := limit(reviews, newLimiter())
	return &Callers{node: node, audience: audience, tokens: cache.New(limited, false, keepYes, keepNo), rights: rights}, nil
}

var errTooMany = errors.New("too many tokens are being shown that nobody has judged yet: try again")

func newLimiter() *rate.Limiter { return rate.NewLimiter(reviewsPerSecond, reviewBurst) }

func limit(tokens authenticator.Token, limiter *rate.Limiter) authenticator.Token {
	return authenticator.TokenFunc(func(ctx context.Context, token string) (*authenticator.Response, bool, error) {
		if !limiter.Allow() {
			return nil, false, errTooMany
		}
		return tokens.AuthenticateToken(ctx, token)
	})
}

// judge says who makes a call, and what that caller may do on this node. The
// error is for whoever calls: it holds nothing of the token, and nothing of the
// cluster that a stranger has no business with.
func (c *Callers) judge(ctx context.Context, method string) (caller, error) {
	token, err := bearerToken(ctx)
	if err != nil {
		return caller{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, 2*reviewTime)
	defer cancel()
	if c.audience != "" {
		ctx = authenticator.WithAudiences(ctx, authenticator.Audiences{c.audience})
	}
	known, ok, err := c.tokens.AuthenticateToken(ctx, token)
	switch {
	case err != nil || !ok:
		return caller{}, c.refused(err, token)
	default:
		return c.allowed(ctx, known.User, method)
	}
}

// allowed gives the first of the verbs that would do which the user has.
func (c *Callers) allowed(ctx context.Context, who user.Info, method string) (caller, error) {
	verbs := verbsFor(method)
	for _, verb := range verbs {
		decision, _, err := c.rights.Authorize(ctx, authorizer.AttributesRecord{
			User: who, Verb: verb, APIGroup: healerGroup, Resource: healerResource, Name: c.node, ResourceRequest: true,
		})
		switch {
		case err != nil:
			return caller{}, unanswered(err)
		case decision == authorizer.DecisionAllow:
			return caller{name: who.GetName(), verb: verb}, nil
		}
	}
	return caller{}, c.forbidden(who.GetName(), verbs[0])
}

// verbsFor gives the verbs that let a caller make a call. Who may only check gets
// an answer to NodeHealer, too: the server changes nothing then.
func verbsFor(method string) []string {
	if method == healerpb.HealerNode_NodeHealer_FullMethodName {
		return []string{forwarded.VerbHeal, forwarded.VerbCheck}
	}
	return []string{forwarded.VerbCheck}
}

// refused words a token that was not accepted.
func (c *Callers) refused(err error, token string) error {
	audience := "the API server itself (--token-audience is not set)"
	if c.audience != "" {
		audience = fmt.Sprintf("%q (--token-audience)", c.audience)
	}
	switch {
	case errors.Is(err, errTooMany):
		return err
	case err == nil, !isOutage(err) && strings.Contains(err.Error(), "audiences"):
		// The API says so of a token that is good otherwise: "token audiences [...]
		// is invalid for the target audiences [...]".
		return fmt.Errorf("the token is for another audience: this server takes tokens for %s", audience)
	case isOutage(err):
		return unanswered(err)
	}
	return errors.New(printable("the token is refused by the Kubernetes API: " + strings.ReplaceAll(err.Error(), token, "[redacted]")))
}

// isOutage tells a question that was not answered from the API's no, which is a
// plain text.
func isOutage(err error) bool {
	var status apierrors.APIStatus
	var sent *url.Error
	return errors.As(err, &status) || errors.As(err, &sent) ||
		errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled)
}

// unanswered words a question that the API did not answer; the log has why.
func unanswered(err error) error {
	if apierrors.IsForbidden(err) || apierrors.IsUnauthorized(err) {
		return errors.New("the Kubernetes API does not let the gateway ask about callers: its log says what is missing")
	}
	return errors.New("the Kubernetes API cannot be asked about callers now, so none is let in: try again")
}

// forbidden words a right that is missing. The usual check, `kubectl auth can-i
// VERB RESOURCE`, says no whatever the rules say: it drops the group of a resource
// that the API does not have (kubectl 1.37). The list is right.
func (c *Callers) forbidden(user, verb string) error {
	return errors.New(printable(fmt.Sprintf(
		"%s may not %s on node %s: a role must give it the verb %q on resource %q (name %q or any) in API group %q. Check: kubectl auth can-i --list --as=%s | grep %s",
		user, verb, c.node, verb, healerResource, c.node, healerGroup, user, healerResource)))
}
