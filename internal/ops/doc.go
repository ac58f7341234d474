// Package ops has every operation that touches a volume or a mount and may
// therefore never return. Only workers run them: the operations are exported as
// values for worker.Call, their functions are not.
//
// An operation trusts nothing it was told about the node a moment ago: it
// resolves paths without following symbolic links, and works from the file
// descriptors it got. One that changes a mount compares mount ids right before
// it acts; what it finds different it refuses (operation.ErrRefused), with nothing
// changed. Inspect and Write walk to a mount once, as each walk keeps an umount from
// succeeding for an instant: the caller finds out from the mount table whether it was
// the expected mount.
package ops
