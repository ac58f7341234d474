// Package node describes the node without touching a volume: the mount table,
// what sysfs knows of devices and filesystems, kubelet's files, and what holds a
// superblock. Workers do everything that touches a volume (internal/ops): one at a
// time at each storage.
//
// Node returns facts. Whether a fact is a fault is decided by the providers, and the
// texts of messages are made there and in pkg/healer.
package node
