package kube

import (
	"maps"
	"regexp"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/csi-addons/node-healer/pkg/healer"
)

// maxTextBytes bounds an event's message, as the API does.
const maxTextBytes = 1024

// seen is what one answer says of a volume, without anything of the request.
type seen struct {
	key     volumeKey
	at      time.Time
	verdict healer.Verdict
	text    string
	// reasons and refusals are the same as long as nothing has changed that is
	// worth to be said.
	reasons, refusals string
	refusalText       string
	pods              []string
}

func see(r healer.Report, text string) seen {
	s := seen{
		key:     volumeKey{driver: r.Driver, id: r.Volume.ID},
		at:      time.Now(),
		verdict: r.Verdict(),
		text:    line(r.Volume.Secrets.Redact(text)),
		reasons: reasonsOf(r.After),
		pods:    podsOf(r),
	}
	if s.verdict == healer.Abnormal && !r.Checked { // a check refuses everything
		s.refusals, s.refusalText = refusalsOf(r)
	}
	return s
}

func reasonsOf(d healer.Diagnosis) string {
	all := map[string]bool{}
	for _, c := range d.Conditions {
		all[string(c.Reason)] = true
	}
	for _, f := range d.Failures {
		all["not examined by "+f.Provider] = true
	}
	return strings.Join(slices.Sorted(maps.Keys(all)), ",")
}

// digits change from check to check, as times and process ids do, without
// making the reason another one.
var digits = regexp.MustCompile(`[0-9]+`)

func refusalsOf(r healer.Report) (same, text string) {
	// What is refused at many places is mostly refused for one reason.
	places := map[string]int{}
	var order []string
	for _, one := range r.Refused {
		what := one.Step + ": " + one.Why
		if places[what] == 0 {
			order = append(order, what)
		}
		places[what]++
	}
	for i, what := range order {
		order[i] = r.Volume.Secrets.Redact(what)
	}
	all := strings.Join(order, "; ")
	slices.Sort(order)
	return digits.ReplaceAllString(strings.Join(slices.Compact(order), "; "), "0"), line("refused: " + all)
}

func podsOf(r healer.Report) []string {
	all := map[string]bool{}
	for _, d := range []healer.Diagnosis{r.Before, r.After} {
		for _, p := range d.Case.Places {
			if p.PodUID != "" {
				all[p.PodUID] = true
			}
		}
	}
	return slices.Sorted(maps.Keys(all))
}

// line fits a text into a message: on one line, in valid UTF-8, with a mark
// where it was cut.
func line(text string) string {
	text = strings.Map(func(c rune) rune {
		if unicode.IsPrint(c) {
			return c
		}
		return ' '
	}, strings.ToValidUTF8(text, "?"))
	if len(text) <= maxTextBytes {
		return text
	}
	const mark = "…"
	cut := maxTextBytes - len(mark)
	for !utf8.RuneStart(text[cut]) {
		cut--
	}
	return text[:cut] + mark
}
