package healer

import (
	"fmt"
	"slices"
	"strings"

	"github.com/csi-addons/node-healer/pkg/host"
	"github.com/csi-addons/node-healer/pkg/printable"
	"github.com/csi-addons/node-healer/pkg/workerops"
)

// maxHoldersText bounds the text in bytes.
const maxHoldersText = 240

// HoldersText returns half a sentence for messages, at most maxHoldersText bytes;
// empty when no holder was found:
//
//	held by pod 1234-5 container abcdef123456 (pid 4711 sleep: open file, cwd),
//	2 mounts in 2 mount namespaces; device held by dm-0, loop3
//
// It names no file of a volume and no argument of a process.
func HoldersText(h host.Holders) string {
	rest := ""
	for _, part := range []struct {
		found bool
		text  string
	}{
		{len(h.Mounts) > 0, atLeast(h) + count(len(h.Mounts), "mount") + " in " + count(namespaces(h), "mount namespace")},
		{len(h.Loops) > 0, "files held by " + firstOf(h.Loops)},
		{h.Unknown > 0, "maybe by " + count(h.Unknown, "open file") + " on unmounted filesystems"},
	} {
		if part.found {
			rest += ", " + part.text
		}
	}
	if device := deviceHolders(h.Device); len(device) > 0 {
		rest += "; device held by " + firstOf(device)
	}
	text := strings.TrimLeft(whoHoldsText(h, maxHoldersText-len(rest))+rest, ",; ")
	return text[:min(len(text), maxHoldersText)]
}

// whoHoldsText names as many holders as fit into limit bytes: one process of each
// container, and the pods that have it mounted and no file open.
func whoHoldsText(h host.Holders, limit int) string {
	type name struct{ long, short string }
	var names []name
	named, left := map[string]bool{}, 0
	for _, p := range h.Processes {
		left++
		w := WorkloadName(p.PodUID, p.ContainerID)
		if w == "" {
			names = append(names, name{processText(p), processText(p)})
		} else if !named[w] {
			named[w] = true
			names = append(names, name{processText(p), w})
		}
	}
	for _, m := range h.Mounts {
		if w := WorkloadName(m.PodUID, m.ContainerID); w != "" && !named[w] {
			left++
			named[w] = true
			names = append(names, name{w + " (mounted)", w})
		}
	}
	text, link := "", "held by "
	for _, n := range names {
		next := text + link + n.long
		if len(next)+len(andMore(left-1)) > limit {
			next = text + link + n.short
		}
		if len(next)+len(andMore(left-1)) > limit {
			break
		}
		text, link, left = next, ", ", left-1
	}
	if text == "" {
		return "" // not even one name fits
	}
	return text + andMore(left)
}

func processText(p host.HeldBy) string {
	if w := WorkloadName(p.PodUID, p.ContainerID); w != "" {
		return fmt.Sprintf("%s (pid %d %s: %s)", w, p.PID, printable.Name(p.Command), howText(p.How))
	}
	return fmt.Sprintf("pid %d %s (%s)", p.PID, printable.Name(p.Command), howText(p.How))
}

// howTexts are the ways to hold something, in the order of a message.
var howTexts = []struct {
	how  workerops.How
	text string
}{
	{workerops.HowFile, "open file"},
	{workerops.HowWorkingDirectory, "cwd"},
	{workerops.HowRoot, "root"},
	{workerops.HowDevice, "open device"},
	{workerops.HowDetached, "unmounted"},
}

func howText(how workerops.How) string {
	var texts []string
	for _, t := range howTexts {
		if how&t.how != 0 {
			texts = append(texts, t.text)
		}
	}
	return strings.Join(texts, ", ")
}

func namespaces(h host.Holders) int {
	all := map[uint64]bool{}
	for _, m := range h.Mounts {
		all[m.Namespace] = true
	}
	return len(all)
}

func atLeast(h host.Holders) string {
	if h.Cut {
		return "at least "
	}
	return ""
}

// deviceHolders names everything that holds the device.
func deviceHolders(d host.DeviceHolders) []string {
	names := slices.Concat(d.Above, d.Loops)
	if len(names) == 0 && d.Claim == host.ClaimTaken {
		names = append(names, "an exclusive opener")
	}
	return names
}

// firstOf joins the first few names and counts the rest.
func firstOf(names []string) string {
	const limit = 3
	if len(names) > limit {
		return strings.Join(names[:limit], ", ") + andMore(len(names)-limit)
	}
	return strings.Join(names, ", ")
}

func andMore(n int) string {
	if n == 0 {
		return ""
	}
	return fmt.Sprintf(" and %d more", n)
}

func count(n int, thing string) string {
	if n == 1 {
		return "1 " + thing
	}
	return fmt.Sprintf("%d %ss", n, thing)
}
