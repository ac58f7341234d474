package printable

import "strings"

// Name returns a name that a user chose in at most 40 bytes, without control characters
// and without what could pass for a part of the sentence around it.
func Name(name string) string {
	const limit = 40
	clean := strings.Map(func(c rune) rune {
		if c > ' ' && c < 0x7f && !strings.ContainsRune(`()[]{}"'`+"`,;:", c) {
			return c
		}
		return '?'
	}, name)
	return clean[:min(len(clean), limit)]
}
