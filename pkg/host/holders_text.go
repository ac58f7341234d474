package host

import (
	"fmt"
	"slices"
	"strings"
)

const (
	// holdersText bounds the text in bytes, shortID a container id in messages.
	holdersText = 240
	shortID     = 12
)

// String gives half a sentence for messages, at most holdersText bytes; empty
// when nobody holds it:
//
//	held by pod 1234-5 container abcdef123456 (pid 4711 sleep: open file, cwd),
//	2 mounts in 2 mount namespaces; device held by dm-0, loop3
//
// It names no file and no argument of anybody.
func (h Holders) String() string {
	var tail []string
	if n := len(h.Mounts); n > 0 {
		tail = append(tail, h.atLeast()+count(n, "mount")+" in "+count(h.namespaces(), "mount namespace"))
	}
	if len(h.Kernel) > 0 {
		tail = append(tail, "files held by "+some(h.Kernel))
	}
	if h.Unknown > 0 {
		tail = append(tail, "maybe by "+count(h.Unknown, "open file")+" on unmounted filesystems")
	}
	rest := strings.Join(tail, ", ")
	if rest != "" {
		rest = ", " + rest
	}
	if device := h.Device.names(); len(device) > 0 {
		rest += "; device held by " + some(device)
	}
	text := strings.TrimLeft(h.who(holdersText-len(rest))+rest, ",; ")
	return text[:min(len(text), holdersText)]
}

// who names as many holders as there is room for: one process of each
// container, and the pods that have it mounted and nothing open.
func (h Holders) who(room int) string {
	type name struct{ long, short string }
	var names []name
	named, left := map[string]bool{}, 0
	for _, p := range h.Processes {
		left++
		w := workload(p.PodUID, p.ContainerID)
		if w == "" {
			names = append(names, name{p.String(), p.String()})
		} else if !named[w] {
			named[w] = true
			names = append(names, name{p.String(), w})
		}
	}
	for _, m := range h.Mounts {
		if w := workload(m.PodUID, m.ContainerID); w != "" && !named[w] {
			left++
			named[w] = true
			names = append(names, name{w + " (mounted)", w})
		}
	}
	text, link := "", "held by "
	for _, n := range names {
		next := text + link + n.long
		if len(next)+len(more(left-1)) > room {
			next = text + link + n.short
		}
		if len(next)+len(more(left-1)) > room {
			break
		}
		text, link, left = next, ", ", left-1
	}
	if text == "" {
		return "" // no room at all
	}
	return text + more(left)
}

func more(n int) string {
	if n == 0 {
		return ""
	}
	return fmt.Sprintf(" and %d more", n)
}

// String names the process.
func (p HeldBy) String() string {
	if w := workload(p.PodUID, p.ContainerID); w != "" {
		return fmt.Sprintf("%s (pid %d %s: %s)", w, p.PID, p.Command, p.How)
	}
	return fmt.Sprintf("pid %d %s (%s)", p.PID, p.Command, p.How)
}

func workload(podUID, container string) string {
	switch {
	case podUID == "":
		return ""
	case container == "":
		return "pod " + printable(podUID)
	default:
		return "pod " + printable(podUID) + " container " + container[:min(len(container), shortID)]
	}
}

func (h Holders) namespaces() int {
	all := map[uint64]bool{}
	for _, m := range h.Mounts {
		all[m.Namespace] = true
	}
	return len(all)
}

func (h Holders) atLeast() string {
	if h.Cut {
		return "at least "
	}
	return ""
}

// names gives everything that holds the device.
func (d DeviceHolders) names() []string {
	names := slices.Concat(d.Above, d.Loops)
	if d.Swap {
		names = append(names, "swap")
	}
	if len(names) == 0 && d.Claim == ClaimTaken {
		names = append(names, "an exclusive opener")
	}
	return names
}

// some shortens a list.
func some(names []string) string {
	const limit = 3
	if len(names) > limit {
		return strings.Join(names[:limit], ", ") + more(len(names)-limit)
	}
	return strings.Join(names, ", ")
}

func count(n int, thing string) string {
	if n == 1 {
		return "1 " + thing
	}
	return fmt.Sprintf("%d %ss", n, thing)
}

// printable makes a name that others chose fit for a message: no control
// character, and nothing that could pass for a part of the sentence.
func printable(name string) string {
	const limit = 40
	clean := strings.Map(func(c rune) rune {
		if c > ' ' && c < 0x7f && !strings.ContainsRune(`()[]{}"'`+"`,;:", c) {
			return c
		}
		return '?'
	}, name)
	return clean[:min(len(clean), limit)]
}
