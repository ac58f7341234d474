// Package mounts is the generic provider: what any filesystem or raw block
// volume can tell through the mount table, sysfs, a probe and, in doubt, a write,
// and the steps that change nothing but where a healthy staged mount is bound.
//
// It examines every volume. What only one kind of storage knows belongs into a
// package of its own beside this one.
package mounts
