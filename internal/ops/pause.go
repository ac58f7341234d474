//go:build !faults

package ops

// pause does nothing in a real build. Test builds stop here, so that a test can
// act at every instant of an operation.
func pause(string) {}

// withoutBeneath reports whether this is a test build that is told to do as on an old
// kernel.
func withoutBeneath() bool { return false }
