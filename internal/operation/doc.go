// Package operation is the worker's side of an operation that may never return: how one is
// defined, and how a worker process serves it. Server and worker talk over a socketpair, in one
// gob stream each way; the server's side is internal/worker.
package operation
