// Package network knows network filesystems by what their mounts name: NFS, SMB, CephFS
// and GlusterFS.
//
// Its provider asks whether the server of a mount that failed or hangs can be reached
// (ServerUnreachable). It never asks about a mount that answers, it does nothing, and
// which errnos a server itself sends is in the table of healer.ConditionRows.
package network
