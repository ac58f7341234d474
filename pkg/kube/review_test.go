package kube

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
)

const (
	controller   = "system:serviceaccount:csi-addons-system:csi-addons-controller-manager"
	testNode     = "node-1"
	testSource   = "10.0.0.1"
	testAudience = "node-healer"
	apiAudience  = "https://kubernetes.default.svc"
	healAndCheck = "heal,check"
)

// fakeReviews is an API that knows tokens and rights.
type fakeReviews struct {
	mu     sync.Mutex
	tokens map[string]authenticationv1.TokenReviewStatus
	rights map[string]string // verbs by user
	err    error             // of every answer
	asked  []string          // what was asked for, without tokens
	seen   []authorizationv1.SubjectAccessReviewSpec

	during func(context.Context) // inside every question
	busy   int
	most   int
}

func newFakeReviews() *fakeReviews {
	return &fakeReviews{
		tokens: map[string]authenticationv1.TokenReviewStatus{
			"good":     {Authenticated: true, User: authenticationv1.UserInfo{Username: controller}},
			"somebody": {Authenticated: true, User: authenticationv1.UserInfo{Username: "somebody"}},
		},
		rights: map[string]string{controller: healAndCheck},
	}
}

func (f *fakeReviews) question(ctx context.Context, what string) error {
	f.mu.Lock()
	f.busy++
	f.most = max(f.most, f.busy)
	f.asked = append(f.asked, what)
	err, during := f.err, f.during
	f.mu.Unlock()
	defer f.change(func() { f.busy-- })
	if during != nil {
		during(ctx)
	}
	return err
}

func (f *fakeReviews) CreateTokenReview(ctx context.Context, r *authenticationv1.TokenReview) (*authenticationv1.TokenReview, error) {
	if err := f.question(ctx, "token"); err != nil {
		return nil, err
	}
	answer := r.DeepCopy()
	f.mu.Lock()
	defer f.mu.Unlock()
	status, known := f.tokens[r.Spec.Token]
	switch {
	case !known:
		status = authenticationv1.TokenReviewStatus{Error: "[invalid bearer token, unknown]"}
	case len(status.Audiences) > 0 && len(r.Spec.Audiences) > 0 && !slices.Contains(status.Audiences, r.Spec.Audiences[0]):
		status = authenticationv1.TokenReviewStatus{Error: fmt.Sprintf("[invalid bearer token, token audiences %q is invalid for the target audiences %q]", status.Audiences, r.Spec.Audiences)}
	}
	answer.Status = status
	return answer, nil
}

func (f *fakeReviews) CreateSubjectAccessReview(ctx context.Context, r *authorizationv1.SubjectAccessReview) (*authorizationv1.SubjectAccessReview, error) {
	if err := f.question(ctx, "access"); err != nil {
		return nil, err
	}
	answer := r.DeepCopy()
	f.mu.Lock()
	defer f.mu.Unlock()
	f.seen = append(f.seen, r.Spec)
	answer.Status.Allowed = slices.Contains(strings.Split(f.rights[r.Spec.User], ","), r.Spec.ResourceAttributes.Verb)
	return answer, nil
}

func (f *fakeReviews) change(what func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	what()
}

// questions gives what was asked since the last time.
func (f *fakeReviews) questions() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	asked := f.asked
	f.asked = nil
	return strings.Join(asked, " ")
}

func newTestReviewer(t *testing.T, api Reviews, audience string) *Reviewer {
	t.Helper()
	r, err := NewReviewer(ReviewerConfig{Reviews: api, Audience: audience, Node: testNode})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestReviewerVerdicts(t *testing.T) {
	down := errors.New("dial tcp 10.0.0.1:443: connection refused")
	denied := apierrors.NewForbidden(schema.GroupResource{Group: "authentication.k8s.io", Resource: "tokenreviews"}, "", errors.New("no"))
	for name, tc := range map[string]struct {
		prepare     func(*fakeReviews)
		audience    string
		token, verb string
		want        []string // in the error; none: let in
	}{
		"the controller heals":  {nil, "", "good", "heal", nil},
		"the controller checks": {nil, "", "good", "check", nil},
		"an unknown token":      {nil, "", "stolen", "check", []string{"the token is refused", "invalid bearer token, unknown"}},
		"somebody else": {nil, "", "somebody", "heal", []string{
			"somebody may not heal on node node-1", `the verb "heal" on resource "nodehealers" (name "node-1" or any) in API group "csi-addons.io"`,
			"kubectl auth can-i --list --as=somebody | grep nodehealers",
		}},
		"one who may only check": {func(f *fakeReviews) { f.rights["somebody"] = "check" }, "", "somebody", "heal", []string{"somebody may not heal"}},
		"one who may check":      {func(f *fakeReviews) { f.rights["somebody"] = "check" }, "", "somebody", "check", nil},
		"a token for us":         {audience("good", testAudience), testAudience, "good", "heal", nil},
		"a token for the API, not for us": {audience("good", apiAudience), testAudience, "good", "heal", []string{
			"the token is for another audience", `"node-healer" (--token-audience)`,
		}},
		"an API that knows no audiences":          {nil, testAudience, "good", "heal", []string{"for another audience"}},
		"a token for others, where the API is it": {func(f *fakeReviews) { f.tokens["good"] = refusedForAudience() }, "", "good", "heal", []string{"for another audience", "the API server itself"}},
		"the API is down":                         {func(f *fakeReviews) { f.err = down }, "", "good", "heal", []string{"cannot be asked", "try again"}},
		"the API lets us not ask":                 {func(f *fakeReviews) { f.err = denied }, "", "good", "heal", []string{"does not let this server ask"}},
		"an empty answer":                         {func(f *fakeReviews) { f.tokens["good"] = authenticationv1.TokenReviewStatus{} }, "", "good", "heal", []string{"audience"}},
	} {
		t.Run(name, func(t *testing.T) {
			api := newFakeReviews()
			if tc.prepare != nil {
				tc.prepare(api)
			}
			err := newTestReviewer(t, api, tc.audience).Authorize(t.Context(), testSource, tc.token, tc.verb)
			if (err == nil) != (tc.want == nil) {
				t.Fatalf("got %v", err)
			}
			for _, want := range tc.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("%q is not in: %v", want, err)
				}
			}
			if err != nil && (strings.Contains(err.Error(), "10.0.0.1") || len(err.Error()) > 500) {
				t.Errorf("too much for a caller: %v", err)
			}
		})
	}
}

func audience(token, is string) func(*fakeReviews) {
	return func(f *fakeReviews) {
		status := f.tokens[token]
		status.Audiences = []string{is}
		f.tokens[token] = status
	}
}

func refusedForAudience() authenticationv1.TokenReviewStatus {
	return authenticationv1.TokenReviewStatus{Error: `[invalid bearer token, token audiences ["x"] is invalid for the target audiences ["https://kubernetes.default.svc"]]`}
}

// The API judges the whole of who calls, about this node.
func TestReviewerSaysWhoAsks(t *testing.T) {
	api := newFakeReviews()
	api.tokens["good"] = authenticationv1.TokenReviewStatus{Authenticated: true, User: authenticationv1.UserInfo{
		Username: controller, UID: "u-1", Groups: []string{"system:serviceaccounts", "system:authenticated"},
		Extra: map[string]authenticationv1.ExtraValue{"authentication.kubernetes.io/pod-name": {"p"}},
	}}
	if err := newTestReviewer(t, api, "").Authorize(t.Context(), testSource, "good", "heal"); err != nil {
		t.Fatal(err)
	}
	got := api.seen[0]
	if got.User != controller || got.UID != "u-1" || !slices.Equal(got.Groups, []string{"system:serviceaccounts", "system:authenticated"}) ||
		!slices.Equal(got.Extra["authentication.kubernetes.io/pod-name"], authorizationv1.ExtraValue{"p"}) {
		t.Errorf("got %+v", got)
	}
	if want := (authorizationv1.ResourceAttributes{Group: "csi-addons.io", Resource: "nodehealers", Verb: "heal", Name: testNode}); *got.ResourceAttributes != want {
		t.Errorf("got %+v", got.ResourceAttributes)
	}
}

func TestReviewerRemembers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := newFakeReviews()
		r := newTestReviewer(t, api, "")
		for _, step := range []struct {
			what        string
			after       time.Duration
			change      func()
			token, verb string
			refused     bool
			asked       string
		}{
			{"a first call", 0, nil, "good", "heal", false, "token access"},
			{"a second", 0, nil, "good", "heal", false, ""},
			{"with another verb", 0, nil, "good", "check", false, "access"},
			{"with another token", 0, nil, "somebody", "check", true, "token access"},
			{"and again", keepNo - time.Millisecond, nil, "somebody", "check", true, ""},
			{"a right that was given", time.Millisecond, func() { api.rights["somebody"] = "check" }, "somebody", "check", false, "access"},
			{"an API that is down counts later", 0, func() { api.err = io.EOF }, "good", "heal", false, ""},
			{"the token is asked for again", keepYes, nil, "good", "heal", true, "token"},
			{"what fails is not remembered", 0, func() { api.err = nil }, "good", "heal", false, "token access"},
			{"a right that was taken away", keepYes, func() { api.rights[controller] = "" }, "good", "heal", true, "token access"},
			{"a token that was taken away", keepYes, func() { delete(api.tokens, "good") }, "good", "heal", true, "token"},
			{"that is remembered too", keepNo - time.Millisecond, func() { api.tokens["good"] = api.tokens["somebody"] }, "good", "heal", true, ""},
			{"but not for long", time.Millisecond, nil, "good", "check", false, "token access"},
		} {
			time.Sleep(step.after)
			if step.change != nil {
				api.change(step.change)
			}
			err := r.Authorize(t.Context(), testSource, step.token, step.verb)
			if (err != nil) != step.refused {
				t.Errorf("%s: got %v", step.what, err)
			}
			if asked := api.questions(); asked != step.asked {
				t.Errorf("%s: the API was asked for %q, want %q", step.what, asked, step.asked)
			}
		}
	})
}

func TestTokenIsNotRememberedBeyondItsEnd(t *testing.T) {
	ends := func(at time.Time) string {
		return "e30." + base64.RawURLEncoding.EncodeToString(fmt.Appendf(nil, `{"exp":%d}`, at.Unix())) + ".s"
	}
	synctest.Test(t, func(t *testing.T) {
		api := newFakeReviews()
		r := newTestReviewer(t, api, "")
		soon, late := ends(time.Now().Add(3*time.Second)), ends(time.Now().Add(time.Hour))
		api.tokens[soon], api.tokens[late] = api.tokens["good"], api.tokens["good"]
		for _, token := range []string{soon, late} {
			if err := r.Authorize(t.Context(), testSource, token, "heal"); err != nil {
				t.Fatal(err)
			}
		}
		api.questions()
		time.Sleep(4 * time.Second)
		for token, want := range map[string]string{soon: "token", late: ""} {
			if _ = r.Authorize(t.Context(), testSource, token, "heal"); api.questions() != want {
				t.Errorf("a token with an end: the API was not asked for %q", want)
			}
		}
	})
}

// However many call with one token, it is asked for once; a caller who leaves
// takes nobody else's answer away.
func TestReviewerAsksOnceForMany(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := newFakeReviews()
		release := make(chan struct{})
		api.during = func(context.Context) { <-release }
		r := newTestReviewer(t, api, "")
		first, leave := context.WithCancel(t.Context())
		results := make(chan error, 100)
		go func() { _ = r.Authorize(first, testSource, "good", "heal") }() // nobody waits for it
		synctest.Wait()
		for range cap(results) {
			go func() { results <- r.Authorize(t.Context(), testSource, "good", "heal") }()
		}
		synctest.Wait()
		leave()
		impatient, cancel := context.WithCancel(t.Context())
		gone := make(chan error, 1)
		go func() { gone <- r.Authorize(impatient, testSource, "good", "heal") }()
		synctest.Wait()
		cancel()
		if err := <-gone; err == nil {
			t.Error("one who did not wait was let in")
		}
		close(release)
		for range cap(results) {
			if err := <-results; err != nil {
				t.Error(err)
			}
		}
		if asked := api.questions(); asked != "token access" {
			t.Errorf("the API was asked for %q", asked)
		}
	})
}

// An API that hangs holds up no more than a few questions, and nobody for long.
func TestReviewerIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := newFakeReviews()
		api.during = func(ctx context.Context) { <-ctx.Done() }
		api.err = context.DeadlineExceeded
		r := newTestReviewer(t, api, "")
		const callers = 100
		results := make(chan error, callers)
		for i := range callers {
			go func() { results <- r.Authorize(t.Context(), fmt.Sprint("source-", i), fmt.Sprint("token-", i), "heal") }()
		}
		started := time.Now()
		texts := map[string]int{}
		for range callers {
			err := <-results
			if err == nil {
				t.Fatal("somebody was let in")
			}
			texts[err.Error()]++
		}
		if took := time.Since(started); took > 2*reviewTime {
			t.Errorf("the last one waited for %v", took)
		}
		if most := api.most; most != maxReviews {
			t.Errorf("%d questions were under way, want %d", most, maxReviews)
		}
		if len(texts) != 2 {
			t.Errorf("got %v", texts)
		}
	})
}

func TestReviewerForgets(t *testing.T) {
	r := newTestReviewer(t, newFakeReviews(), "")
	ask := func(key int, err error, keep time.Duration) (asked bool) {
		_, _ = r.bearers.get(t.Context(), tokenKey{byte(key), byte(key >> 8)}, func(context.Context) (authenticationv1.UserInfo, time.Duration, error) {
			asked = true
			return authenticationv1.UserInfo{}, keep, err
		})
		return asked
	}
	ask(0, nil, keepYes)
	for i := range 3 * maxAnswers {
		ask(i+1, errors.New("wrong"), keepNo)
	}
	if n := len(r.bearers.known); n > maxAnswers {
		t.Errorf("%d tokens are remembered", n)
	}
	// The good one outlives the flood: what is refused is forgotten first.
	if ask(0, nil, keepYes) {
		t.Error("the API was asked again")
	}
}

func TestReviewerThatPanics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := newFakeReviews()
		release := make(chan struct{})
		api.during = func(context.Context) { <-release; panic("no") }
		r := newTestReviewer(t, api, "")
		results := make(chan error, 2)
		for range cap(results) {
			go func() {
				defer func() {
					if recover() != nil {
						results <- errors.New("panicked")
					}
				}()
				results <- r.Authorize(t.Context(), testSource, "good", "heal")
			}()
		}
		synctest.Wait()
		close(release)
		for range cap(results) {
			if err := <-results; err == nil {
				t.Error("somebody was let in")
			}
		}
		api.change(func() { api.during = nil })
		if err := r.Authorize(t.Context(), testSource, "good", "heal"); err != nil {
			t.Errorf("afterwards: %v", err)
		}
	})
}

func TestReviewerConfig(t *testing.T) {
	for _, cfg := range []ReviewerConfig{{Node: testNode}, {Reviews: newFakeReviews()}} {
		if _, err := NewReviewer(cfg); err == nil {
			t.Errorf("%+v: accepted", cfg)
		}
	}
}

func TestTokensThatTellTheirEnd(t *testing.T) {
	now := time.Unix(1000, 0)
	jwt := func(claims string) string { return "h." + base64.RawURLEncoding.EncodeToString([]byte(claims)) + ".s" }
	for token, want := range map[string]time.Duration{
		"opaque":                  keepYes,
		"a.b":                     keepYes,
		"a.%.c":                   keepYes,
		jwt(`x`):                  keepYes,
		jwt(`{}`):                 keepYes,
		jwt(`{"exp":"1003"}`):     keepYes,
		jwt(`{"exp":1003}`):       3 * time.Second,
		jwt(`{"exp":1003.9}`):     3 * time.Second,
		jwt(`{"exp":2000}`):       keepYes,
		jwt(`{"exp":998}`):        -2 * time.Second,
		jwt(`{"exp":1003}`) + ".": keepYes,
	} {
		if got := keepUntil(token, now); got != want {
			t.Errorf("%s: got %v, want %v", token, got, want)
		}
	}
}

// client-go would log what it sends.
func TestReviewedTokensAreNotLogged(t *testing.T) {
	logged := captureLog(t, "10")
	const secret = "s3cr3t-token"
	sent := false
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		sent = sent || bytes.Contains(body, []byte(secret))
		http.Error(w, "no", http.StatusInternalServerError)
	}))
	defer api.Close()
	client, err := newClient(&rest.Config{Host: api.URL}, api.Client(), "")
	if err != nil {
		t.Fatal(err)
	}
	if err := newTestReviewer(t, client, "").Authorize(t.Context(), testSource, secret, "heal"); err == nil || !sent {
		t.Errorf("got %v, and the token was sent: %v", err, sent)
	}
	// A dump in hexadecimal has its text at the end of each line.
	flat := strings.NewReplacer("\n", "", "|", "").Replace(logged())
	if !strings.Contains(flat, "Cannot ask the API") || strings.Contains(flat, secret) || strings.Contains(flat, "s3cr3t") {
		t.Errorf("log:\n%s", logged())
	}
}
