// Package mount asks the kernel about mounts: it reads mount tables, knows mount namespaces
// and their owners and how mounts propagate, and has the system calls that read and change
// mounts, typed. Package node reads with it, package ops changes with it.
//
// It decides nothing. Its calls that take a path or the descriptor of a mount may wait for
// that mount's filesystem: only a worker makes them.
package mount
