// Package gateway lets callers from the network reach a node healer, which itself
// listens on unix sockets only. It runs in a process and a pod of its own, without
// privileges: TLS, tokens and the limits on both are dealt with where nothing can
// be gained.
//
// A call is let in by the Kubernetes API (TokenReview, SubjectAccessReview) and
// passed on unread to the server's second socket, with the caller's name and verb
// (package forwarded). Whatever the server registers is reached, and its answers
// and codes come back as they are; only UNAUTHENTICATED and the limits are the
// gateway's own. It registers itself where the CSI-Addons controller looks.
//
// What else the server has to tell the network belongs here too, on a listener of
// its own beside Serve: metrics, over HTTP. Do not use the package for callers on
// the node: they have the server's socket.
package gateway
