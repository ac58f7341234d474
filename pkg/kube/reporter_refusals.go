package kube

import (
	"errors"
	"net/http"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/wait"
)

// soon goes from a second to half a minute, at which it stays.
var soon = wait.Backoff{Duration: time.Second, Factor: 2, Jitter: 0.2, Steps: 10, Cap: 30 * time.Second}

// maxRefusals is how often in a row the API may say what could change by itself
// before it is believed: about a quarter of a minute. One that has just started
// denies everything (403) until it has read the roles.
const maxRefusals = 5

// refusals counts the errors that the API gives in a row.
type refusals int

// final is true for an error that will be the same the next time. Nobody who
// answers, and nobody who knows our token, may always change.
func (r *refusals) final(err error) bool {
	var status apierrors.APIStatus
	if !errors.As(err, &status) || apierrors.IsUnauthorized(err) {
		return false
	}
	switch code := status.Status().Code; {
	case code == http.StatusForbidden, code == http.StatusTooManyRequests, code >= http.StatusInternalServerError:
		*r = min(*r+1, maxRefusals)
		return *r == maxRefusals
	default:
		return true
	}
}

func (r *refusals) forget() { *r = 0 }
