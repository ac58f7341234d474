// Package worker runs operations that may never return in processes of their
// own, so that the server itself never blocks on a volume.
//
// An operation is defined once (internal/operation); the worker program serves it, the
// server asks for it with Call. What an operation may do is said in internal/ops. Do not
// use it for work that cannot hang; a function call is cheaper.
package worker
