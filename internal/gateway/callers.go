package gateway

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"regexp"
	"strings"
	"time"

	"golang.org/x/time/rate"
	"google.golang.org/grpc/metadata"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/token/cache"
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
	// maxTextBytes bounds the text of an error, which is sent in a header.
	maxTextBytes = 1024
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
	return &Callers{node: node, audiences: audiences, tokens: cache.New(limit(reviews), false, allowedTTL, deniedTTL), rights: rights}, nil
}

// The errors that say nothing of the caller; the log of the gateway says why.
var (
	errTooMany  = errors.New("too many tokens that were not reviewed yet: try again")
	errNoAnswer = errors.New("the Kubernetes API cannot be asked about callers now, so no call is allowed: try again")
	// errMayNotAsk does not end by itself: the gateway's own rights are missing.
	errMayNotAsk = errors.New("the Kubernetes API does not let the gateway ask about callers: its log says what is missing")
)

// limit refuses what is more than may be asked.
func limit(tokens authenticator.Token) authenticator.Token {
	limiter := rate.NewLimiter(reviewsPerSecond, reviewBurst)
	return authenticator.TokenFunc(func(ctx context.Context, token string) (*authenticator.Response, bool, error) {
		if !limiter.Allow() {
			return nil, false, errTooMany
		}
		return tokens.AuthenticateToken(ctx, token)
	})
}

// authorizeCall returns who makes a call, and what that caller may do on this node: the first
// of the verbs that allow it, of which the one that allows more comes first.
func (c *Callers) authorizeCall(ctx context.Context, method string) (caller, error) {
	verbs := []string{forwarded.VerbCheck}
	if method == healerpb.HealerNode_NodeHealer_FullMethodName {
		// A caller that may only check gets an answer, too: the server changes nothing then.
		verbs = []string{forwarded.VerbHeal, forwarded.VerbCheck}
	}
	var rights []authorizer.AttributesRecord
	for _, verb := range verbs {
		rights = append(rights, authorizer.AttributesRecord{
			Verb: verb, APIGroup: healerGroup, Resource: healerResource, Name: c.node, ResourceRequest: true,
		})
	}
	return c.authorize(ctx, metadata.ValueFromIncomingContext(ctx, "authorization"), c.audiences, rights...)
}

// authorize returns whose token an authorization has, with the first of the rights that this
// user has. The token has to be for one of the audiences; none given: for the API server. The
// error is sent to the caller: it holds nothing of the token, and nothing of the cluster that
// an unauthenticated caller must not learn.
func (c *Callers) authorize(ctx context.Context, authorization []string, audiences authenticator.Audiences, rights ...authorizer.AttributesRecord) (caller, error) {
	token, err := bearerToken(authorization)
	if err != nil {
		return caller{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, 2*reviewTimeout)
	defer cancel()
	if len(audiences) > 0 {
		ctx = authenticator.WithAudiences(ctx, audiences)
	}
	known, ok, err := c.tokens.AuthenticateToken(ctx, token)
	if err != nil || !ok {
		return caller{}, tokenError(err, token, audiences)
	}
	name := known.User.GetName()
	for _, right := range rights {
		right.User = known.User
		decision, _, err := c.rights.Authorize(ctx, right)
		switch {
		case err != nil:
			return caller{}, outageError(err)
		case decision == authorizer.DecisionAllow:
			return caller{name: name, verb: right.Verb}, nil
		}
	}
	return caller{}, forbidden(name, rights[0])
}

// maxTokenBytes bounds a token. A service account's has about 1 KiB, those of other
// issuers a few.
const maxTokenBytes = 8 << 10

// tokenText is b64token of RFC 6750, section 2.1.
var tokenText = regexp.MustCompile(`^[A-Za-z0-9._~+/-]+=*$`)

// bearerToken returns the token of an authorization "Bearer <token>", which is given once. The
// error holds nothing of it.
func bearerToken(values []string) (string, error) {
	switch {
	case len(values) == 0:
		return "", errors.New("no bearer token: calls over TCP need one as authorization metadata")
	case len(values) > 1:
		return "", errors.New("more than one authorization")
	}
	scheme, token, _ := strings.Cut(values[0], " ")
	switch {
	case !strings.EqualFold(scheme, "bearer"):
		return "", errors.New("the authorization is not a bearer token")
	case len(token) > maxTokenBytes:
		return "", fmt.Errorf("the bearer token has %d bytes, at most %d are allowed", len(token), maxTokenBytes)
	case !tokenText.MatchString(token):
		return "", errors.New("the bearer token is empty or has characters that no token has")
	}
	return token, nil
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

// forbiddenError is of a caller that is known, and lacks a right.
type forbiddenError string

func (e forbiddenError) Error() string { return string(e) }

// forbidden names the missing right. The usual check, `kubectl auth can-i VERB RESOURCE`,
// always says no: it drops the group of a resource that the API does not have (kubectl 1.37).
// With --list it is right.
func forbidden(user string, right authorizer.AttributesRecord) error {
	text := fmt.Sprintf("%s may not get %s: a role must give it the verb get on the nonResourceURL %s", user, right.Path, right.Path)
	if right.ResourceRequest {
		text = fmt.Sprintf(
			"%s may not %s on node %s: a role must give it the verb %q on resource %q (name %q or any) in API group %q. Check: kubectl auth can-i --list --as=%s | grep %s",
			user, right.Verb, right.Name, right.Verb, healerResource, right.Name, healerGroup, user, healerResource)
	}
	return forbiddenError(printable.Line(text, maxTextBytes))
}
