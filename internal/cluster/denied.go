package cluster

import (
	"cmp"
	"errors"
	"fmt"
	"net/url"
	"regexp"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/csi-addons/node-healer/internal/printable"
)

// maxErrorBytes bounds the text of an error that the API sent: it goes into
// messages that have limits of their own.
const maxErrorBytes = 499

// explain adds to an error what was asked of the API, and to a denial also what
// is missing, how to fix it, and how to check it. It also takes errors that a
// watch brings as an event.
func explain(r request, err error) error {
	r = r.shown()
	var answer apierrors.APIStatus
	switch {
	case err == nil:
		return nil
	case !errors.As(err, &answer):
		if sent := (*url.Error)(nil); errors.As(err, &sent) {
			err = sent.Err // r says what was sent in fewer words
		}
		return fmt.Errorf("%s: %w", r, err)
	}
	text := fmt.Sprintf("%s: %s", r, err)
	switch {
	case apierrors.IsUnauthorized(err): // the API does not say which of the causes it is
		text = fmt.Sprintf("%s: not authenticated (401). The API does not accept our token: it has expired, has another audience or issuer, "+
			"its service account or pod was deleted, or a clock is wrong. Check: kubectl get serviceaccount -A, for that of this pod. "+
			"Fix: %s, then delete this pod: it gets a new token", r, applyManifests)
	case apierrors.IsForbidden(err):
		text = cmp.Or(denied(answer.Status()), text)
	}
	return answered(answer, text)
}

// answered returns an error that the API sent with a text of ours.
func answered(answer apierrors.APIStatus, text string) error {
	status := answer.Status()
	status.Message = printable.Line(text, maxErrorBytes)
	return &apierrors.StatusError{ErrStatus: status}
}

// applyManifests names no command: one for our manifests would undo an overlay
// of them.
const applyManifests = "apply deploy, or your overlay of it, again"

// denialText is how kube-apiserver words it (responsewriters.Forbidden).
var denialText = regexp.MustCompile(
	`User "([^"]*)" cannot ([a-z]+) resource "([a-z0-9-]+)" in API group "([a-z0-9.-]*)" (?:at the cluster scope|in the namespace "([a-z0-9-]+)")`)

// plain is what a shell takes as one word.
var plain = regexp.MustCompile(`^[A-Za-z0-9:._@/-]+$`)

// denied returns the text for a 403: who needs which right, the kubectl command with which
// an administrator checks it, and the fix. The command names the object, which matters
// where a rule lists names. What the API denied may differ from what was sent, as a watch that
// follows a list. It is empty where admission, a quota or a proxy refused: their text says more.
func denied(answer metav1.Status) string {
	found := denialText.FindStringSubmatch(answer.Message)
	if found == nil {
		return ""
	}
	r := request{Verb: found[2], GroupResource: schema.GroupResource{Group: found[4], Resource: found[3]}, Namespace: found[5]}
	if answer.Details != nil && plain.MatchString(answer.Details.Name) {
		r.Name = answer.Details.Name
	}
	r = r.shown()
	user := "system:serviceaccount:NAMESPACE:NAME"
	if plain.MatchString(found[1]) {
		user = found[1]
	}
	what := r.GroupResource.String()
	if r.Name != "" {
		what += "/" + r.Name
	}
	where := "-A" // also for resources without a namespace
	if r.Namespace != "" {
		where = "-n " + r.Namespace
	}
	return fmt.Sprintf("%s: denied (403). Fix: %s. Check: kubectl auth can-i %s %s %s --as=%s", r, applyManifests, r.Verb, what, where, user)
}
