// Package state keeps the server's own files in its state directory: a record
// for each volume, the audit log, and the lock that keeps a second server out.
//
// Nothing in it is a secret, and nothing in it is needed to answer: a lost state
// directory costs the next heals. Checks then have nothing to compare with.
package state
