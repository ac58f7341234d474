package bench

import (
	"fmt"
	"sync"
)

// target is what a line must reach, with the unit of both.
type target struct {
	must  string // "<=", ">=", or nothing: the line is for information
	value float64
	unit  string
}

func atMost(value float64, unit string) target { return target{"<=", value, unit} }

func atLeast(value float64, unit string) target { return target{">=", value, unit} }

func untold(unit string) target { return target{unit: unit} }

func (t target) String() string {
	if t.must == "" {
		return ""
	}
	return fmt.Sprintf("%s %g%s", t.must, t.value, t.unit)
}

func (t target) verdict(got float64) string {
	switch {
	case t.must == "":
		return ""
	case t.must == "<=" && got <= t.value, t.must == ">=" && got >= t.value:
		return "reached"
	default:
		return "not reached"
	}
}

const rowFormat = "| %-84s | %-52s | %9s | %9s | %-11s |\n"

// printHead is done once, by the first line.
var printHead = sync.OnceFunc(func() {
	fmt.Printf(rowFormat, "what", "measured", "result", "target", "")
	fmt.Println("|---|---|---|---|---|")
})

// row writes a line as soon as it is known.
func row(what, measured string, got float64, t target) {
	printHead()
	fmt.Printf(rowFormat, what, measured, fmt.Sprintf("%.2f", got)+t.unit, t, t.verdict(got))
}
