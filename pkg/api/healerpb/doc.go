// Package healerpb is the wire contract of the node healer: healer.proto and
// the stubs that `make generate` makes of it.
//
// It exists because the published CSI-Addons module has no healer package.
// Only the gRPC edge and clients use it; everything else speaks in the words
// of package healer.
package healerpb
