package host

import "strings"

// WorkloadName returns the name of a pod's container for messages, empty outside of
// pods.
func WorkloadName(podUID, containerID string) string {
	const shortID = 12
	switch {
	case podUID == "":
		return ""
	case containerID == "":
		return "pod " + Printable(podUID)
	default:
		return "pod " + Printable(podUID) + " container " + containerID[:min(len(containerID), shortID)]
	}
}

// Printable returns a name that a user chose without control characters, and
// without what could pass for a part of the sentence.
func Printable(name string) string {
	const limit = 40
	clean := strings.Map(func(c rune) rune {
		if c > ' ' && c < 0x7f && !strings.ContainsRune(`()[]{}"'`+"`,;:", c) {
			return c
		}
		return '?'
	}, name)
	return clean[:min(len(clean), limit)]
}
