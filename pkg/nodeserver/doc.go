// Package nodeserver is the gRPC edge of the node healer, on unix sockets only. It
// authenticates the caller, or trusts the gateway that did (package gateway), validates
// the text of a request, calls the engine, and maps reports and errors to messages and
// gRPC codes, which no package below knows.
//
// The package touches no volume: whether a path exists, crosses a symlink or names
// another volume is for the engine to find out, in a worker. Do not use it to heal from
// within the process; call the engine.
package nodeserver
