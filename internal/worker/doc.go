// Package worker runs operations that may never return in processes of their
// own, so that the server itself never blocks on a volume.
//
// An operation is defined once with Define; the worker program lists it in
// Serve, the server asks for it with Call. Both sides talk over a socketpair
// in one gob stream each way. What an operation may do is said in
// internal/ops. Do not use it for work that cannot hang; a function
// call is cheaper.
package worker
