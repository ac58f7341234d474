// Package state keeps the server's own files in its state directory: a record
// for each volume, the audit log, and the lock that keeps a second server out.
//
// It holds no secret, and no answer needs it: without it less is healed, and checks
// have nothing to compare with, until each volume is recorded anew.
package state
