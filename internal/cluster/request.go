package cluster

import (
	"slices"
	"strings"
)

// request names what is asked of the API in RBAC's words.
type request struct {
	Verb      string
	Group     string // empty: the core group
	Resource  string
	Namespace string // empty: cluster-scoped, or all namespaces
	Name      string
}

// shown returns a request without the names of what belongs to one tenant. The text of
// its error may be shown to another one: a search reads the claims of all pods here, and
// an API that does not answer is not asked again for others.
func (r request) shown() request {
	if r.Verb == "get" && slices.Contains([]string{"pods", "persistentvolumeclaims", "namespaces"}, r.Resource) {
		r.Namespace, r.Name = "", ""
	}
	return r
}

// String returns, for example, "get pods in namespace x" or "list persistentvolumes".
func (r request) String() string {
	var b strings.Builder
	b.WriteString(r.Verb + " " + r.Resource)
	if r.Group != "" {
		b.WriteString("." + r.Group)
	}
	if r.Namespace != "" {
		b.WriteString(" in namespace " + r.Namespace)
	}
	return b.String()
}
