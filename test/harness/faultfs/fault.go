package faultfs

import (
	"slices"
	"syscall"
	"time"
)

// Kind is a kind of request that the kernel sends to the daemon.
type Kind string

// The kinds of requests. All stands for every one of them, and for those that
// have no name here, but for what begins and ends a connection.
const (
	Getattr Kind = "getattr"
	Statfs  Kind = "statfs"
	Lookup  Kind = "lookup"
	Open    Kind = "open" // of a file or a directory
	Read    Kind = "read" // of a file
	Readdir Kind = "readdir"
	Write   Kind = "write"
	Fsync   Kind = "fsync"
	All     Kind = "all"

	other Kind = "other"
)

// fault is how a kind of request is treated; the zero value is no fault. A delay
// comes before whatever else there is.
type fault struct {
	Errno syscall.Errno
	Delay time.Duration
	Hang  bool
	Drop  bool
}

// order is what the test tells the daemon: from now on the kinds have this
// fault. Without kinds it changes nothing.
type order struct {
	Kinds []Kind
	Fault fault
}

// faults is what every kind of request meets.
type faults map[Kind]fault

// of returns a kind's own fault, or that of All.
func (f faults) of(k Kind) fault {
	if own, ok := f[k]; ok {
		return own
	}
	return f[All]
}

// obey follows an order. One for All forgets what was ordered before for some.
func (f faults) obey(o order) {
	if slices.Contains(o.Kinds, All) {
		clear(f)
	}
	for _, k := range o.Kinds {
		f[k] = o.Fault
	}
}

// counts is how many requests of each kind the daemon has read.
type counts map[Kind]int
