package nodeserver

import (
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/csi-addons/node-healer/pkg/healer"
)

// maxMessageBytes bounds NodeHealerResponse.message.
const maxMessageBytes = 1024

// budget says how much one part of a message may take.
type budget struct {
	path  int // bytes of a path
	text  int // bytes of evidence
	why   int // bytes of a reason why, an error, an advice
	items int // mount points, steps, refusals, advices listed one by one
}

// budgets are tried from generous to terse until the message fits: most
// messages are short, and one with many mount points loses its evidence before it
// loses a reason.
var budgets = [...]budget{
	{path: 400, text: 600, why: 600, items: 16},
	{path: 200, text: 240, why: 240, items: 8},
	{path: 200, text: 120, why: 160, items: 8},
	{path: 160, text: 80, why: 120, items: 4},
	{path: 160, text: 48, why: 120, items: 3},
	{path: 100, text: 32, why: 110, items: 3},
	{path: 80, text: 24, why: 110, items: 2},
	{path: 60, text: 16, why: 100, items: 1},
	{path: 100, text: 48, why: 48, items: 3},
	{path: 80, text: 32, why: 32, items: 2},
	{path: 60, text: 24, why: 24, items: 1},
	{path: 24, text: 3, why: 3, items: 0},
}

// message puts a report into one line of at most maxMessageBytes: the verdict,
// what was found mount point by mount point, what was done, what was refused and why, and
// what a person should do.
func message(r healer.Report) (abnormal bool, text string) {
	verdict := r.Verdict()
	return verdict == healer.Abnormal, newWording(&r).fit(verdict)
}

// notice is the message without how long anything took: what comes again reads
// the same again, and can be told to be the same.
func notice(r healer.Report) string {
	w := newWording(&r)
	w.timeless = true
	return w.fit(r.Verdict())
}

// wording writes one report within one budget.
type wording struct {
	r *healer.Report
	// mount points has everything that may be named.
	mountPoints []healer.MountPoint
	timeless    bool
	budget
}

func newWording(r *healer.Report) wording { return wording{r: r, mountPoints: mountPointsOf(r)} }

func (w wording) fit(v healer.Verdict) (text string) {
	for _, w.budget = range budgets {
		if text = w.line(v); len(text) <= maxMessageBytes {
			break
		}
	}
	return oneLine(text, maxMessageBytes)
}

func (w wording) line(v healer.Verdict) string {
	start := string(v) + ": "
	switch v {
	case healer.Healthy:
		return start + sentences(w.working(w.r.After, w.mountPoint))
	case healer.Healed:
		return start + sentences(w.found(w.r.Before), w.done(), "Now "+w.working(w.r.After, w.mention), w.refused(), w.restart())
	case healer.Abnormal:
		return start + sentences(w.foundFirst(), w.done(), w.afterwards(), w.refused(), w.restart(), w.held(), w.advice())
	}
	return start
}

// sentences joins the parts that have something to say.
func sentences(parts ...string) string {
	said := parts[:0]
	for _, p := range parts {
		if p != "" {
			said = append(said, p)
		}
	}
	return strings.Join(said, ". ")
}

// done names the steps that ran. Those with the same outcome are told together,
// with the longest time that one took.
func (w wording) done() string {
	if len(w.r.Steps) == 0 {
		return "Nothing was changed"
	}
	type same struct{ step, err, note string }
	mountPoints, longest := map[same][]string{}, map[same]time.Duration{}
	var order []same
	for _, s := range w.r.Steps {
		k := same{step: s.Step, note: s.Note}
		if s.Err != nil {
			k.err = s.Err.Error()
		}
		if mountPoints[k] == nil {
			order = append(order, k)
		}
		mountPoints[k], longest[k] = append(mountPoints[k], s.MountPoint), max(longest[k], s.Elapsed)
	}
	// Of many containers those that failed first: the rest may be cut.
	rank := func(k same) int {
		switch {
		case w.insideAt(mountPoints[k][0]) == nil:
			return 0
		case k.err != "":
			return 1
		}
		return 2
	}
	slices.SortStableFunc(order, func(a, b same) int { return rank(a) - rank(b) })
	items := make([]string, 0, len(order))
	for _, k := range order {
		item := w.step(k.step, unique(mountPoints[k])...)
		if k.err == "" {
			item += w.took(" in ", longest[k])
			if k.note != "" {
				item += " (" + w.why(k.note) + ")"
			}
		} else {
			item += " failed" + w.took(" after ", longest[k]) + " (" + w.why(k.err) + ")"
		}
		items = append(items, item)
	}
	return "Done: " + w.list(items, "steps")
}

// refused names the steps that would have helped and did not run, those with
// one reason together: it is mostly the same at every mount point.
func (w wording) refused() string {
	type key struct{ step, why string }
	mountPoints := map[key][]string{}
	var order []key
	for _, s := range w.r.Refused {
		k := key{s.Step, s.Why}
		if mountPoints[k] == nil {
			order = append(order, k)
		}
		mountPoints[k] = append(mountPoints[k], s.MountPoint)
	}
	items := make([]string, 0, len(order))
	for _, k := range order {
		items = append(items, w.step(k.step, unique(mountPoints[k])...)+" ("+w.why(k.why)+")")
	}
	if len(items) == 0 {
		return ""
	}
	return "Refused: " + w.list(items, "steps")
}

// restart names who has files open on what was replaced.
func (w wording) restart() string {
	var items []string
	for _, h := range w.r.Restart {
		if text := healer.HoldersText(h); text != "" {
			items = append(items, w.text(text))
		}
	}
	if len(items) == 0 {
		return ""
	}
	return "Files opened before stay dead until they are opened anew or the pod restarts: " + w.list(items, "filesystems")
}

// held tells who holds what is still sick.
func (w wording) held() string {
	var items []string
	for _, h := range w.r.Holders {
		if text := healer.HoldersText(h); text != "" {
			items = append(items, w.text(text))
		}
	}
	if len(items) == 0 {
		return ""
	}
	first := []rune(items[0])
	first[0] = unicode.ToUpper(first[0])
	items[0] = string(first)
	return w.list(items, "filesystems")
}

// advice is what a person should do about what is left.
func (w wording) advice() string {
	var items []string
	for _, g := range w.groups(w.r.After) {
		for _, c := range g.conditions {
			if c.Advice != "" {
				items = append(items, w.why(c.Advice))
			}
		}
	}
	if len(items) == 0 {
		return ""
	}
	return "To do: " + w.list(unique(items), "things")
}

// step names a step and the mount points it is about.
func (w wording) step(name string, paths ...string) string {
	name = oneLine(name, maxReasonBytes) + " of "
	if role := w.wholeRole(paths); role != "" {
		return name + fmt.Sprintf("all %d %s mount points", len(paths), role)
	}
	shown := min(len(paths), max(w.items, 1))
	names := make([]string, 0, shown+1)
	for _, path := range paths[:shown] {
		names = append(names, w.mention(path))
	}
	if rest := len(paths) - shown; rest > 0 {
		names = append(names, more(rest, shown, "mount points"))
	}
	return name + enumerate(names)
}

// list shows as many items as the budget allows and counts the rest.
func (w wording) list(items []string, plural string) string {
	if len(items) > w.items {
		rest := len(items) - w.items
		items = append(items[:w.items:w.items], more(rest, w.items, plural))
	}
	return strings.Join(items, "; ")
}

// more stands for items that there was no room for.
func more(rest, shown int, plural string) string {
	if rest == 1 {
		plural = strings.TrimSuffix(plural, "s")
	}
	if shown == 0 {
		return fmt.Sprintf("%d %s%s", rest, plural, ellipsis)
	}
	return fmt.Sprintf("%d more %s%s", rest, plural, ellipsis)
}

// text fits evidence that others wrote into the line, why a reason.
func (w wording) text(s string) string { return w.cut(s, w.budget.text) }
func (w wording) why(s string) string  { return w.cut(s, w.budget.why) }

func (w wording) cut(s string, limit int) string {
	return oneLine(w.r.Volume.Secrets.Redact(strings.TrimSpace(s)), limit)
}

// took rounds a duration to what a reader can use.
func (w wording) took(word string, d time.Duration) string {
	switch {
	case w.timeless:
		return ""
	case d < time.Millisecond:
		d = d.Round(time.Microsecond)
	case d < time.Second:
		d = d.Round(time.Millisecond)
	default:
		d = d.Round(10 * time.Millisecond)
	}
	return word + d.String()
}
