// Package mounts is the generic provider: what the mount table, sysfs, a probe and, on
// suspicion, a write show of any filesystem or raw block volume on the host, and the
// steps that change nothing but where a healthy staged mount is bound.
//
// It examines every volume. What only one kind of storage knows belongs into a
// package of its own beside this one, and what containers have into containers.
package mounts
