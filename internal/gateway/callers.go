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

	"github.com/csi-addons/node-healer/internal/printable"
	"github.com/csi-addons/node-healer/pkg/api/forwarded"
	"github.com/csi-addons/node-healer/pkg/api/healerpb"
	"github.com/csi-addons/node-healer/pkg/api/registration"
)

// The resource that callers need a right on. It exists in RBAC rules only.
const (
	healerGroup    = "csi-addons.io"
	healerResource = "nodehealers"
)

const (
	// allowedTTL is how long what the API allowed is not asked again. A right that is
	// taken away may still be used for that time.
	allowedTTL = 10 * time.Second
	// deniedTTL is short, so that a right that was just given can be used.
	deniedTTL = 2 * time.Second
	// reviewTimeout bounds the wait for one answer of the API.
	reviewTimeout = 5 * time.Second
	// reviewsPerSecond bounds how many tokens the API is asked about, reviewBurst how
	// many at once: unauthenticated callers can send as many tokens as they like.
	reviewsPerSecond = 20
	reviewBurst      = 50
)

// Callers asks the Kubernetes API whom a token belongs to (TokenReview), and what that
// user may do on this node (SubjectAccessReview). Make it with NewCallers.
type Callers struct {
	node string
	// audiences are what a caller's token has to be for, one of them.
	audiences authenticator.Audiences
	tokens    authenticator.Token
	rights    authorizer.Authorizer
}

// caller is an authenticated and authorized user.
type caller struct {
	name string
	// verb is what the caller may do.
	verb string
}

// NewCallers returns Callers for a node, whose name roles may be limited to. Tokens have
// to be for registration.Audience of that node, so that no other node's gateway can use
// what a caller sent it, or for another audience, if one is given.
func NewCallers(api *rest.Config, node, audience string) (*Callers, error) {
	if node == "" {
		return nil, errors.New("gateway: callers are authorized by the node's name, which is missing")
	}
	audiences := authenticator.Audiences{registration.Audience(node)}
	if audience != "" {
		audiences = append(audiences, audience)
	}
	authentication, err := authenticationclient.NewForConfig(api)
	if err != nil {
		return nil, fmt.Errorf("gateway: %w", err)
	}
	authorization, err := authorizationclient.NewForConfig(api)
	if err != nil {
		return nil, fmt.Errorf("gateway: %w", err)
	}
	once := wait.Backoff{Steps: 1} // callers retry by themselves
	reviews, err := webhook.NewFromInterface(authentication, nil, once, reviewTimeout, webhook.AuthenticatorMetrics{
		RecordRequestTotal:   func(context.Context, string) {},
		RecordRequestLatency: func(context.Context, string, float64) {},
	})
	if err != nil {
		return nil, fmt.Errorf("gateway: %w", err)
	}
	rights, err := authorizerfactory.DelegatingAuthorizerConfig{
		SubjectAccessReviewClient: authorization, AllowCacheTTL: allowedTTL, DenyCacheTTL: deniedTTL, WebhookRetryBackoff: &once,
	}.New()
	if err != nil {
		return nil, fmt.Errorf("gateway: %w", err)
	}
	// As authenticatorfactory's delegating authenticator, with the limit between cache
	// and API, where a token that is in the cache costs nothing.
	limited := limit(reviews, newLimiter())
	return &Callers{node: node, audiences: audiences, tokens: cache.New(limited, false, allowedTTL, deniedTTL), rights: rights}, nil
}

// The errors that say nothing of the caller; the log of the gateway says why.
var (
	errTooMany  = errors.New("too many tokens that were not reviewed yet: try again")
	errNoAnswer = errors.New("the Kubernetes API cannot be asked about callers now, so no call is allowed: try again")
	// errMayNotAsk does not end by itself: the gateway's own rights are missing.
	errMayNotAsk = errors.New("the Kubernetes API does not let the gateway ask about callers: its log says what is missing")
)

func newLimiter() *rate.Limiter { return rate.NewLimiter(reviewsPerSecond, reviewBurst) }

// limit refuses what the limiter does not allow instead of asking.
func limit(tokens authenticator.Token, limiter *rate.Limiter) authenticator.Token {
	return authenticator.TokenFunc(func(ctx context.Context, token string) (*authenticator.Response, bool, error) {
		if !limiter.Allow() {
			return nil, false, errTooMany
		}
		return tokens.AuthenticateToken(ctx, token)
	})
}

// authorize returns who makes a call, and what that caller may do on this node. The
// error is sent to the caller: it holds nothing of the token, and nothing of the
// cluster that an unauthenticated caller must not learn.
func (c *Callers) authorize(ctx context.Context, method string) (caller, error) {
	token, err := bearerToken(ctx)
	if err != nil {
		return caller{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, 2*reviewTimeout)
	defer cancel()
	who, err := c.authenticate(ctx, token, c.audiences)
	if err != nil {
		return caller{}, err
	}
	return c.authorizeUser(ctx, who, verbsFor(method))
}

// authenticate returns whose a token is, which has to be for one of the audiences; none
// given: for the API server.
func (c *Callers) authenticate(ctx context.Context, token string, audiences authenticator.Audiences) (user.Info, error) {
	if len(audiences) > 0 {
		ctx = authenticator.WithAudiences(ctx, audiences)
	}
	known, ok, err := c.tokens.AuthenticateToken(ctx, token)
	if err != nil || !ok {
		return nil, tokenError(err, token, audiences)
	}
	return known.User, nil
}

// authorizeUser returns the user with the first of the verbs that the user has.
func (c *Callers) authorizeUser(ctx context.Context, who user.Info, verbs []string) (caller, error) {
	for _, verb := range verbs {
		decision, _, err := c.rights.Authorize(ctx, authorizer.AttributesRecord{
			User: who, Verb: verb, APIGroup: healerGroup, Resource: healerResource, Name: c.node, ResourceRequest: true,
		})
		switch {
		case err != nil:
			return caller{}, outageError(err)
		case decision == authorizer.DecisionAllow:
			return caller{name: who.GetName(), verb: verb}, nil
		}
	}
	return caller{}, c.forbiddenError(who.GetName(), verbs[0])
}

// verbsFor returns the verbs that allow a call, the one that allows more first. A
// caller that may only check gets an answer to NodeHealer too: the server changes
// nothing then.
func verbsFor(method string) []string {
	if method == healerpb.HealerNode_NodeHealer_FullMethodName {
		return []string{forwarded.VerbHeal, forwarded.VerbCheck}
	}
	return []string{forwarded.VerbCheck}
}

// tokenError says why a token was not accepted. Where it has to be for an audience, the
// API's own words are lost (k8s.io/apiserver compares the audiences first).
func tokenError(err error, token string, audiences authenticator.Audiences) error {
	switch {
	case errors.Is(err, errTooMany):
		return err
	case isOutage(err):
		return outageError(err)
	case err == nil:
		return fmt.Errorf("the token is refused by the Kubernetes API, or is for another audience: this server takes tokens for %q (--token-audience adds one)", audiences)
	}
	return errors.New(printable.Line("the token is refused by the Kubernetes API: "+strings.ReplaceAll(err.Error(), token, "[redacted]"), maxTextBytes))
}

// isOutage reports whether the API did not answer. Its denial is a plain text.
func isOutage(err error) bool {
	var status apierrors.APIStatus
	var sent *url.Error
	return errors.As(err, &status) || errors.As(err, &sent) ||
		errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled)
}

// outageError says that the API did not answer about the caller.
func outageError(err error) error {
	if apierrors.IsForbidden(err) || apierrors.IsUnauthorized(err) {
		return errMayNotAsk
	}
	return errNoAnswer
}

// forbiddenError names the missing right. The usual check, `kubectl auth can-i VERB
// RESOURCE`, always says no: it drops the group of a resource that the API does not
// have (kubectl 1.37). With --list it is right.
func (c *Callers) forbiddenError(user, verb string) error {
	return errors.New(printable.Line(fmt.Sprintf(
		"%s may not %s on node %s: a role must give it the verb %q on resource %q (name %q or any) in API group %q. Check: kubectl auth can-i --list --as=%s | grep %s",
		user, verb, c.node, verb, healerResource, c.node, healerGroup, user, healerResource), maxTextBytes))
}
