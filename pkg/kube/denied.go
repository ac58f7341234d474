package kube

import (
	"errors"
	"fmt"
	"net/url"
	"regexp"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/csi-addons/node-healer/pkg/printable"
)

// maxErrorBytes bounds the text of an error that the API sent: it goes into
// messages that have limits of their own.
const maxErrorBytes = 499

// answeredError is an error that the API sent, with a text of ours.
type answeredError struct {
	text string
	err  error
}

// Error implements error.
func (e *answeredError) Error() string { return e.text }

// Unwrap returns the original.
func (e *answeredError) Unwrap() error { return e.err }

// explain adds to an error what was asked of the API, and to a denial also what
// is missing, how to check that, and how to fix it. It also takes errors that a
// watch brings as an event.
func (c *Client) explain(r request, err error) error {
	r = r.shown()
	var known *answeredError
	var answer apierrors.APIStatus
	switch {
	case err == nil:
		return nil
	case errors.As(err, &known):
		return err // a reflector passes on what list returned
	case !errors.As(err, &answer):
		if sent := (*url.Error)(nil); errors.As(err, &sent) {
			err = sent.Err // r says what was sent in fewer words
		}
		return fmt.Errorf("%s: %w", r, err)
	case apierrors.IsUnauthorized(err):
		return &answeredError{unauthenticated(r, c.account), err}
	case apierrors.IsForbidden(err):
		if d, is := parseDenial(answer.Status(), c.account); is {
			return &answeredError{d.String(), err}
		}
		// Admission, a quota or a proxy refused it: the original text says more.
	}
	return &answeredError{oneLine(r.String() + ": " + err.Error()), err}
}

// denial is a request that the API's authorizer refused.
type denial struct {
	request
	// user is the user that the API saw; empty when that is not known.
	user string
	// why is what the authorizer added, usually nothing.
	why string
}

// denialText is how kube-apiserver words it (responsewriters.Forbidden).
var denialText = regexp.MustCompile(
	`User "([^"]*)" cannot ([a-z]+) resource "([a-z0-9-]+)(?:/([a-z0-9/-]+))?" in API group "([a-z0-9.-]*)" ` +
		`(?:at the cluster scope|in the namespace "([a-z0-9-]+)")(?:: (.*))?$`)

// parseDenial returns what the API says it denied, which may differ from what
// was sent: an apply that creates needs two verbs. account is used where the
// text names no user.
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
	d.request = d.shown()
	return d, true
}

// plain is what a shell takes as one word.
var plain = regexp.MustCompile(`^[A-Za-z0-9:._@/-]+$`)

// applyManifests names no command: one for our manifests would undo an overlay
// of them.
const applyManifests = "apply deploy, or your overlay of it, again"

// String returns the text of the error; what helps least is dropped until it fits.
func (d denial) String() string {
	if d.user == "system:anonymous" {
		return oneLine(d.what() + ": denied (403), because the request carried no token: the API saw system:anonymous. " +
			"Missing: a service account token in this pod, or credentials in --kubeconfig. " +
			"Check: kubectl get ds -A -l app.kubernetes.io/name=node-healer -o jsonpath='{..automountServiceAccountToken}'. " +
			"Fix: " + applyManifests)
	}
	for _, drop := range []func(){func() {}, func() { d.why = "" }, func() { d.Name = "" }, func() { d.user = "" }} {
		drop()
		if len(d.text()) <= maxErrorBytes {
			break
		}
	}
	return oneLine(d.text())
}

func (d denial) text() string {
	// The most useful comes first: a message may hold the first half only.
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

// rule returns the RBAC rule that is missing, as YAML.
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

// role returns the kind of role for the rule: a Role in our own namespace.
func (d denial) role() string {
	if own, _ := accountParts(d.user); own != "" && own == d.Namespace {
		return "Role"
	}
	return "ClusterRole"
}

// check returns the kubectl command with which an administrator checks it.
// kubectl takes what follows a slash for a name, which matters where a rule
// lists names; a subresource is a flag.
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
	where := "-A" // also for resources without a namespace
	if d.Namespace != "" {
		where = "-n " + d.Namespace
	}
	return fmt.Sprintf("kubectl auth can-i %s %s --as=%s %s", d.Verb, what, who, where)
}

// unauthenticated returns the text for a 401. The API does not say which of the
// causes it is.
func unauthenticated(r request, account string) string {
	check := "that this pod's service account exists"
	if namespace, name := accountParts(account); name != "" && len(namespace)+len(name) < 100 {
		check = "kubectl get serviceaccount " + name + " -n " + namespace
	}
	return oneLine(fmt.Sprintf("%s: not authenticated (401). The API does not accept our token: it has expired, has another audience or issuer, "+
		"its service account or pod was deleted, or a clock is wrong. Check: %s; date -u on this node and on the API server. "+
		"Fix: %s, then delete this pod: it gets a new token", r, check, applyManifests))
}

// accountParts splits system:serviceaccount:<namespace>:<name>.
func accountParts(user string) (namespace, name string) {
	rest, is := strings.CutPrefix(user, "system:serviceaccount:")
	if !is {
		return "", ""
	}
	namespace, name, _ = strings.Cut(rest, ":")
	return namespace, name
}

func oneLine(text string) string { return printable.Line(text, maxErrorBytes) }
