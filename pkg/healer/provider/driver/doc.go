// Package driver asks the CSI driver that a volume belongs to, on its own sockets on
// this node: its opinion of the volume is evidence, and a driver that can heal gets the
// step delegate.
//
// A driver is believed in nothing that can be seen: its opinion adds a condition and
// never takes one away, and what it healed is observed again. It is not asked about a
// volume whose own probe hangs, because each call could leave a thread of it stuck.
package driver
