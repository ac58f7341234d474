package nodeserver

import (
	"fmt"
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
	text  int // bytes of evidence, a reason why, an error, an advice
	items int // places, steps, refusals, advices listed one by one
}

// budgets are tried from generous to terse until the message fits: most
// messages are short, and one with many places loses its evidence before it
// loses a reason.
var budgets = [...]budget{
	{path: 400, text: 600, items: 16},
	{path: 200, text: 240, items: 8},
	{path: 200, text: 120, items: 8},
	{path: 160, text: 80, items: 4},
	{path: 160, text: 48, items: 3},
	{path: 100, text: 48, items: 3},
	{path: 80, text: 32, items: 2},
	{path: 60, text: 24, items: 1},
	{path: 24, text: 3, items: 0},
}

// message puts a report into one line of at most maxMessageBytes: the verdict,
// what was found place by place, what was done, what was refused and why, and
// what a person should do.
func message(r healer.Report) (abnormal bool, text string) {
	verdict := r.Verdict()
	return verdict == healer.Abnormal, wording{r: &r}.fit(verdict)
}

// notice is the message without how long anything took: what comes again reads
// the same again, and can be told to be the same.
func notice(r healer.Report) string { return wording{r: &r, timeless: true}.fit(r.Verdict()) }

// wording writes one report within one budget.
type wording struct {
	r        *healer.Report
	timeless bool
	budget
}

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
		return start + w.working(w.r.After, w.place)
	case healer.Healed:
		return start + sentences(w.found(w.r.Before), w.done(), "Now "+w.working(w.r.After, w.mention), w.refused())
	case healer.Abnormal:
		return start + sentences(w.foundFirst(), w.done(), w.afterwards(), w.refused(), w.held(), w.advice())
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

// done names the steps that ran.
func (w wording) done() string {
	if len(w.r.Steps) == 0 {
		return "Nothing was changed"
	}
	items := make([]string, 0, len(w.r.Steps))
	for _, s := range w.r.Steps {
		item := w.step(s.Step, s.Place)
		if s.Err == nil {
			item += w.took(" in ", s.Elapsed)
		} else {
			item += " failed" + w.took(" after ", s.Elapsed) + " (" + w.text(s.Err.Error()) + ")"
		}
		items = append(items, item)
	}
	return "Done: " + w.list(items, "steps")
}

// refused names the steps that would have helped and did not run, those with
// one reason together: it is mostly the same at every place.
func (w wording) refused() string {
	type key struct{ step, why string }
	places := map[key][]string{}
	var order []key
	for _, s := range w.r.Refused {
		k := key{s.Step, s.Why}
		if places[k] == nil {
			order = append(order, k)
		}
		places[k] = append(places[k], s.Place)
	}
	items := make([]string, 0, len(order))
	for _, k := range order {
		items = append(items, w.step(k.step, unique(places[k])...)+" ("+w.text(k.why)+")")
	}
	if len(items) == 0 {
		return ""
	}
	return "Refused: " + w.list(items, "steps")
}

// held tells who holds what is still sick.
func (w wording) held() string {
	var items []string
	for _, h := range w.r.Holders {
		if text := h.String(); text != "" {
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
				items = append(items, w.text(c.Advice))
			}
		}
	}
	if len(items) == 0 {
		return ""
	}
	return "To do: " + w.list(unique(items), "things")
}

// step names a step and the places it is about.
func (w wording) step(name string, paths ...string) string {
	name = oneLine(name, maxReasonBytes) + " of "
	if role := w.wholeRole(paths); role != "" {
		return name + fmt.Sprintf("all %d %s places", len(paths), role)
	}
	shown := min(len(paths), max(w.items, 1))
	names := make([]string, 0, shown+1)
	for _, path := range paths[:shown] {
		names = append(names, w.mention(path))
	}
	if rest := len(paths) - shown; rest > 0 {
		names = append(names, more(rest, shown, "places"))
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

// text fits a text that others wrote into the line.
func (w wording) text(s string) string {
	return oneLine(w.r.Volume.Secrets.Redact(strings.TrimSpace(s)), w.budget.text)
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
