package kube

import "strings"

// request names what is asked of the API in RBAC's words.
type request struct {
	Verb        string
	Group       string // empty: the core group
	Resource    string
	Subresource string
	Namespace   string // empty: cluster-scoped, or all namespaces
	Name        string
}

// String returns, for example, "get pods in namespace x" or "list persistentvolumes".
func (r request) String() string {
	var b strings.Builder
	b.WriteString(r.Verb + " " + r.Resource)
	if r.Subresource != "" {
		b.WriteString("/" + r.Subresource)
	}
	if r.Group != "" {
		b.WriteString("." + r.Group)
	}
	if r.Namespace != "" {
		b.WriteString(" in namespace " + r.Namespace)
	}
	return b.String()
}
