// Package network knows network filesystems by what their mounts name: NFS, SMB, CephFS,
// 9p over TCP and GlusterFS.
//
// Its provider asks whether the server of a mount that failed or hangs can be reached
// (ServerUnreachable). It never asks about a mount that answers, it does nothing, and
// which errnos a server itself sends is in the table of healer.ConditionRows.
//
// The rest tells which storage backend a volume lies on: the server that a network
// filesystem names as its source, the FUSE daemons of one driver, or one filesystem of
// which several volumes are parts. With it, what several volumes suffer from can be
// blamed on the backend that they share. It decides from a report alone.
package network
