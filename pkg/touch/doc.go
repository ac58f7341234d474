// Package touch holds every operation that touches a volume or a mount and may
// therefore never return. Only workers run them: the operations are exported as
// values for worker.Call, their functions are not.
//
// An operation trusts nothing it was told about the node a moment ago: it
// resolves paths without following symbolic links, works from the file
// descriptors it got, and compares mount ids right before it acts. What it
// finds different it refuses (worker.ErrRefused), with nothing changed.
package touch
