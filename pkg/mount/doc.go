// Package mount says what the kernel says of mounts: mount tables, mount namespaces
// and their owners, propagation, attributes and ids, and the system calls that read
// and change them, typed. Package host reads with it, package ops changes with
// it.
//
// It decides nothing and imports nothing of this project. Its calls that take a path
// or the descriptor of a mount may wait for that mount's filesystem: only a worker
// makes them.
package mount
