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
	// state is the whole volume's, and not only that of the mount points looked at.
	state string
	pods  []string
}

func see(r healer.Report, ill illnesses) seen {
	return seen{
		key:     volumeKey{driver: r.Driver, id: r.Volume.ID},
		at:      time.Now(),
		verdict: r.Verdict(),
		state:   stateOf(ill),
		pods:    podsOf(r),
	}
}

// digits change from check to check, as times and process ids do, without
// making the reason another one.
var digits = regexp.MustCompile(`[0-9]+`)

// refusalsOf gives what is refused by mount point, the same as long as nothing has
// changed that is worth to be said, and all of it as a text. What is refused at
// many mount points is mostly refused for one reason.
func refusalsOf(r healer.Report) (same map[string]string, text string) {
	if r.Checked || r.Verdict() != healer.Abnormal { // a check refuses everything
		return nil, ""
	}
	same = map[string]string{}
	spots := spotsOf(r.After.Case)
	var all []string
	for _, one := range r.Refused {
		what := r.Volume.Secrets.Redact(one.Step + ": " + one.Why)
		if !slices.Contains(all, what) {
			all = append(all, what)
		}
		at, what := spots.of(one.MountPoint).name, digits.ReplaceAllString(what, "0")+"; "
		if !strings.Contains(same[at], what) {
			same[at] += what
		}
	}
	return same, line("refused: " + strings.Join(all, "; "))
}

func podsOf(r healer.Report) []string {
	all := map[string]bool{}
	for _, d := range []healer.Diagnosis{r.Before, r.After} {
		for _, p := range d.Case.MountPoints {
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
