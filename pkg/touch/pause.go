//go:build !faults

package touch

// pause does nothing in a real build. Test builds stop here, so that a test can
// act at every instant of an operation.
func pause(string) {}
