// Package fuse knows what is behind a FUSE mount that does not answer: the daemon. It
// names the process, and may abort a connection whose daemon hangs.
//
// That the mount is dead or does not answer is found by the provider mounts. Nothing is
// asked for a volume that answers.
package fuse
