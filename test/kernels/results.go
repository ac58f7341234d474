package kernels

import (
	"regexp"
	"strings"
)

// result is what one test did.
type result struct {
	name string
	// outcome is PASS, FAIL or SKIP; empty if the test never ended.
	outcome string
	output  strings.Builder
}

// results are those of one kernel, in the order in which the tests started.
type results struct {
	// ended is true when the machine lived until the tests had ended: otherwise
	// they say nothing of the kernel.
	ended   bool
	all     []*result
	byName  map[string]*result
	current *result
}

func newResults() *results { return &results{byName: map[string]*result{}} }

// marker is what -test.v=test2json puts before each line of the framework.
const marker = "\x16"

var (
	starts = regexp.MustCompile(`^=== (?:RUN|CONT|NAME|PAUSE)\s+(\S*)`)
	ends   = regexp.MustCompile(`^\s*--- (PASS|FAIL|SKIP): (\S+)`)
)

// read takes one line of the output. A test's line may follow on one that has not
// ended.
func (r *results) read(line string) {
	before, framework, found := strings.Cut(line, marker)
	if before != "" && r.current != nil {
		r.current.output.WriteString(before + "\n")
	}
	if !found {
		return
	}
	if m := starts.FindStringSubmatch(framework); m != nil {
		r.current = r.of(m[1])
	} else if m := ends.FindStringSubmatch(framework); m != nil {
		r.current = r.of(m[2])
		r.current.outcome = m[1]
	}
}

// of returns the result of a test, from its first line on.
func (r *results) of(name string) *result {
	if name == "" { // the framework's word for none
		return nil
	}
	if r.byName[name] == nil {
		r.byName[name] = &result{name: name}
		r.all = append(r.all, r.byName[name])
	}
	return r.byName[name]
}

// top are the tests that are no subtests.
func (r *results) top() []*result {
	var top []*result
	for _, one := range r.all {
		if !strings.Contains(one.name, "/") {
			top = append(top, one)
		}
	}
	return top
}

// said returns what a test and those in it printed, those that failed or never
// ended, or else all.
func (r *results) said(top *result) string {
	var text strings.Builder
	for _, one := range r.all {
		if one == top || strings.HasPrefix(one.name, top.name+"/") && one.outcome == top.outcome {
			text.WriteString(one.name + ": " + one.outcome + "\n" + one.output.String())
		}
	}
	return text.String()
}
