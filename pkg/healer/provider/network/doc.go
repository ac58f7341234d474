// Package network tells which storage backend a volume lies on: the server that a
// network filesystem names as its source, the FUSE daemons of one driver, or one
// filesystem of which several volumes are parts. With it, what several volumes
// suffer from can be blamed on the backend that they share.
//
// It decides from a report alone and never contacts a server. It has no conditions
// of its own yet and so is not in the list of providers.
package network
