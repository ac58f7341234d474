// Package gateway lets callers from the network reach a node healer, which itself
// listens on unix sockets only. It runs in an unprivileged process and pod of its own,
// so that TLS, tokens and floods of connections are handled where an attacker gains
// nothing.
//
// The Kubernetes API authorizes each call (TokenReview, SubjectAccessReview). The
// gateway passes those that controllers make on undecoded to the server's second socket,
// with the caller's name and verb (package forwarded). The server's answers and codes come
// back unchanged; those of StatusRows, the limits and reflection are the gateway's own. It
// registers itself with the CSI-Addons controller.
//
// Whatever else the server offers to the network belongs here too, on a listener of
// its own: metrics, over HTTP. Do not use the package for callers on the node: they
// have the server's socket.
package gateway
