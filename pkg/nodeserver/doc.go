// Package nodeserver is the gRPC edge of the node healer, on unix sockets only: it
// authenticates the caller, or believes the gateway that did (package gateway),
// checks what the text of a request alone can show, asks the engine, and puts
// reports and errors on the wire.
//
// gRPC codes are known here and nowhere below. The package touches no volume:
// whether a path exists, crosses a symlink or names another volume is for the
// engine to find out, in a worker. Do not use it to call a healer from within
// the process; call the engine.
package nodeserver
