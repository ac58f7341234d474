package kube

import (
	"errors"
	"fmt"
	"net/url"
	"regexp"
	"strings"
	"unicode"
	"unicode/utf8"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// maxDenied bounds the text of an error with which the API answered: it goes
// into messages that have limits of their own.
const maxDenied = 499

// answeredError is an error with which the API answered, in words of ours. The
// original stays within reach.
type answeredError struct {
	text string
	err  error
}

// Error implements error.
func (e *answeredError) Error() string { return e.text }

// Unwrap gives the original.
func (e *answeredError) Unwrap() error { return e.err }

// explain says of an error what was asked of the API, and of a denial also what
// is missing, how to see that, and what mends it. Errors that arrive later, as
// an event of a watch, may be given too.
func (c *Client) explain(r request, err error) error {
	var known *answeredError
	var answer apierrors.APIStatus
	switch {
	case err == nil:
		return nil
	case errors.As(err, &known):
		return err // as when a reflector hands on what list gave it
	case !errors.As(err, &answer):
		if sent := (*url.Error)(nil); errors.As(err, &sent) {
			err = sent.Err // what was sent, r says in fewer words
		}
		return fmt.Errorf("%s: %w", r, err)
	case apierrors.IsUnauthorized(err):
		return &answeredError{unauthenticated(r, c.account), err}
	case apierrors.IsForbidden(err):
		if d, is := parseDenial(answer.Status(), c.account); is {
			return &answeredError{d.String(), err}
		}
		// Somebody else's rule (admission, a quota, a proxy): its own words tell
		// more than ours.
	}
	return &answeredError{oneLine(r.String() + ": " + err.Error()), err}
}

// denial is a no of the API's authorizer.
type denial struct {
	request
	// user is whom the API saw; empty when that is not known.
	user string
	// why is what the authorizer added, mostly nothing.
	why string
}

// denialText is how kube-apiserver words it (responsewriters.Forbidden).
var denialText = regexp.MustCompile(
	`User "([^"]*)" cannot ([a-z]+) resource "([a-z0-9-]+)(?:/([a-z0-9/-]+))?" in API group "([a-z0-9.-]*)" ` +
		`(?:at the cluster scope|in the namespace "([a-z0-9-]+)")(?:: (.*))?$`)

// parseDenial reads what the API says it denied: that may be more than was
// asked, as an apply that creates needs two verbs. account stands in for a user
// that the text does not tell.
func parseDenial(answer metav1.Status, account string) (denial, bool) {
	found := denialText.FindStringSubmatch(strings.ReplaceAll(answer.Message, "\n", " "))
	if found == nil {
		return denial{}, false
	}
	d := denial{user: found[1], why: found[7], request: request{
		Verb: found[2], Resource: found[3], Subresource: found[4], Group: found[5], Namespace: found[6],
	}}
	if !plain.MatchString(d.user) {
		d.user = account
	}
	if answer.Details != nil && plain.MatchString(answer.Details.Name) {
		d.Name = answer.Details.Name
	}
	return d, true
}

// plain is what a shell takes as one word.
var plain = regexp.MustCompile(`^[A-Za-z0-9:._@/-]+$`)

// applyManifests gives no command: one for our manifests would undo what an
// overlay of them sets.
const applyManifests = "apply deploy, or your overlay of it, again"

// String drops what helps least until the rest fits.
func (d denial) String() string {
	if d.user == "system:anonymous" {
		return oneLine(d.what() + ": denied (403), because the request carried no token: the API saw system:anonymous. " +
			"Missing: a service account token in this pod, or credentials in --kubeconfig. " +
			"Check: kubectl get ds -A -l app.kubernetes.io/name=node-healer -o jsonpath='{..automountServiceAccountToken}'. " +
			"Fix: " + applyManifests)
	}
	for _, drop := range []func(){func() {}, func() { d.why = "" }, func() { d.Name = "" }, func() { d.user = "" }} {
		drop()
		if len(d.text()) <= maxDenied {
			break
		}
	}
	return oneLine(d.text())
}

func (d denial) text() string {
	// A message may have room for the first half only.
	text := fmt.Sprintf("%s: denied (403). Check: %s. Missing: the rule %s in a %s of this account. Fix: %s",
		d.what(), d.check(), d.rule(), d.role(), applyManifests)
	if d.why != "" {
		text += ". The API adds: " + d.why
	}
	return text
}

func (d denial) what() string {
	if d.Namespace == "" {
		return d.request.String() + " at the cluster scope"
	}
	return d.request.String()
}

// rule is what RBAC would have to say, as YAML.
func (d denial) rule() string {
	group, resource := d.Group, d.Resource
	if group == "" {
		group = `""`
	}
	if d.Subresource != "" {
		resource += "/" + d.Subresource
	}
	return fmt.Sprintf("{apiGroups: [%s], resources: [%s], verbs: [%s]}", group, resource, d.Verb)
}

// role is the kind that the rule belongs into: a Role serves our own namespace.
func (d denial) role() string {
	if own, _ := accountParts(d.user); own != "" && own == d.Namespace {
		return "Role"
	}
	return "ClusterRole"
}

// check is the question to ask the API as an administrator. kubectl takes what
// follows a slash for a name, which counts where a rule lists names; a
// subresource is a flag.
func (d denial) check() string {
	what := d.Resource
	if d.Group != "" {
		what += "." + d.Group
	}
	if d.Name != "" {
		what += "/" + d.Name
	}
	if d.Subresource != "" {
		what += " --subresource=" + d.Subresource
	}
	who := d.user
	if who == "" {
		who = "system:serviceaccount:NAMESPACE:NAME"
	}
	where := "-A" // also for what lies in no namespace
	if d.Namespace != "" {
		where = "-n " + d.Namespace
	}
	return fmt.Sprintf("kubectl auth can-i %s %s --as=%s %s", d.Verb, what, who, where)
}

// unauthenticated words a 401. The API never says which of the causes it is.
func unauthenticated(r request, account string) string {
	check := "that this pod's service account exists"
	if namespace, name := accountParts(account); name != "" && len(namespace)+len(name) < 100 {
		check = "kubectl get serviceaccount " + name + " -n " + namespace
	}
	return oneLine(fmt.Sprintf("%s: not authenticated (401). The API does not accept our token: it has expired, has another audience or issuer, "+
		"its service account or pod was deleted, or a clock is wrong. Check: %s; date -u on this node and on the API server. "+
		"Fix: %s, then delete this pod: it gets a new token", r, check, applyManifests))
}

// accountParts takes system:serviceaccount:<namespace>:<name> apart.
func accountParts(user string) (namespace, name string) {
	rest, is := strings.CutPrefix(user, "system:serviceaccount:")
	if !is {
		return "", ""
	}
	namespace, name, _ = strings.Cut(rest, ":")
	return namespace, name
}

// oneLine gives a text that others had a part in as one line of at most
// maxDenied bytes.
func oneLine(text string) string {
	text = strings.Map(func(c rune) rune {
		if unicode.IsPrint(c) {
			return c
		}
		return ' '
	}, text)
	if len(text) <= maxDenied {
		return text
	}
	const mark = "…"
	cut := maxDenied - len(mark)
	for !utf8.RuneStart(text[cut]) {
		cut--
	}
	return text[:cut] + mark
}
