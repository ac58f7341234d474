package kube

import (
	"errors"
	"fmt"
	"strings"
)

// refused words a token that the API does not take, for whoever sent it.
func (r *Reviewer) refused(why string) error {
	audience := "the API server itself (--token-audience is not set)"
	if r.cfg.Audience != "" {
		audience = fmt.Sprintf("%q (--token-audience)", r.cfg.Audience)
	}
	// The API says so of a token that is good otherwise: "token audiences [...]
	// is invalid for the target audiences [...]".
	if why == "" || strings.Contains(why, "audiences") {
		return fmt.Errorf("the token is for another audience: this server takes tokens for %s", audience)
	}
	return errors.New(oneLine("the token is refused by the Kubernetes API: " + why))
}

// forbidden words a right that is missing. The usual check, `kubectl auth can-i
// VERB RESOURCE`, says no whatever the rules say: it drops the group of a
// resource that the API does not have (kubectl 1.37). The list is right.
func (r *Reviewer) forbidden(user, verb string) error {
	return errors.New(oneLine(fmt.Sprintf(
		"%s may not %s on node %s: a role must give it the verb %q on resource %q (name %q or any) in API group %q. Check: kubectl auth can-i --list --as=%s | grep %s",
		user, verb, r.cfg.Node, verb, healerResource, r.cfg.Node, healerGroup, user, healerResource)))
}
