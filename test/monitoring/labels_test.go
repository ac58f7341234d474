package monitoring

import (
	"maps"
	"regexp"
	"slices"
	"testing"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql/parser"
)

// ofTheTarget are labels that a scrape gives to each series.
var ofTheTarget = []string{"job", "instance", "node", "namespace", "pod"}

// labelSet has the labels that a series may have.
type labelSet map[string]bool

func setOf(names ...[]string) labelSet {
	all := labelSet{}
	for _, name := range slices.Concat(names...) {
		all[name] = true
	}
	return all
}

func (s labelSet) without(names ...string) labelSet {
	rest := maps.Clone(s)
	for _, name := range names {
		delete(rest, name)
	}
	return rest
}

func (s labelSet) and(others labelSet) labelSet {
	all := maps.Clone(s)
	maps.Copy(all, others)
	return all
}

// exist fails the test when an expression names a metric or a label that is not there, or
// a text a label that the expression's result does not have. legend is how the text names
// a label.
func exist(t *testing.T, where string, expr parser.Expr, legend *regexp.Regexp, texts ...string) {
	t.Helper()
	l := labelled{t, where}
	has := l.of(expr)
	for _, text := range texts {
		for _, named := range legend.FindAllStringSubmatch(text, -1) {
			l.needs(has, "%q", text, named[1])
		}
	}
}

// labelled follows the labels through an expression.
type labelled struct {
	t     *testing.T
	where string
}

// needs fails the test when a label is missing from those that what has.
func (l labelled) needs(has labelSet, format string, what any, names ...string) {
	l.t.Helper()
	for _, name := range names {
		if !has[name] {
			l.t.Errorf("%s: "+format+" has no label %s", l.where, what, name)
		}
	}
}

// of returns the labels of an expression's result.
func (l labelled) of(expr parser.Expr) labelSet {
	l.t.Helper()
	switch e := expr.(type) {
	case *parser.VectorSelector:
		return l.ofSelector(e)
	case *parser.AggregateExpr:
		return l.ofAggregate(e)
	case *parser.BinaryExpr:
		return l.ofBinary(e)
	case *parser.Call:
		return l.ofCall(e)
	case *parser.MatrixSelector:
		return l.of(e.VectorSelector)
	case *parser.SubqueryExpr:
		return l.of(e.Expr)
	case *parser.ParenExpr:
		return l.of(e.Expr)
	case *parser.UnaryExpr:
		return l.of(e.Expr)
	case *parser.StepInvariantExpr:
		return l.of(e.Expr)
	case *parser.NumberLiteral, *parser.StringLiteral:
		return labelSet{}
	}
	l.t.Errorf("%s: this test does not know the labels of %T", l.where, expr)
	return labelSet{}
}

func (l labelled) ofSelector(e *parser.VectorSelector) labelSet {
	l.t.Helper()
	served, found := series(l.t)[e.Name]
	if !found && e.Name != "up" { // up is Prometheus's own
		l.t.Errorf("%s: there is no metric %s", l.where, e.Name)
	}
	has := setOf(served, ofTheTarget)
	for _, m := range e.LabelMatchers {
		if m.Name != model.MetricNameLabel {
			l.needs(has, "%s", e.Name, m.Name)
		}
	}
	return has
}

func (l labelled) ofAggregate(e *parser.AggregateExpr) labelSet {
	l.t.Helper()
	has := l.of(e.Expr)
	l.needs(has, "%s", e.Expr, e.Grouping...)
	switch e.Op {
	case parser.TOPK, parser.BOTTOMK, parser.LIMITK, parser.LIMIT_RATIO:
		return has
	case parser.COUNT_VALUES:
		l.t.Errorf("%s: this test does not know the labels of %s", l.where, e)
	}
	if e.Without {
		return has.without(e.Grouping...)
	}
	return setOf(e.Grouping)
}

func (l labelled) ofBinary(e *parser.BinaryExpr) labelSet {
	l.t.Helper()
	left, right := l.of(e.LHS), l.of(e.RHS)
	m := e.VectorMatching
	if m == nil { // one side is a number
		return left.and(right)
	}
	if m.On || len(m.MatchingLabels) > 0 {
		l.needs(left, "%s", e.LHS, m.MatchingLabels...)
		l.needs(right, "%s", e.RHS, m.MatchingLabels...)
	}
	l.needs(left.and(right), "%s", e, m.Include...)
	if !m.On && e.Op != parser.LOR && m.Card != parser.CardManyToOne && m.Card != parser.CardOneToMany &&
		!maps.Equal(left.without(m.MatchingLabels...), right.without(m.MatchingLabels...)) {
		l.t.Errorf("%s: no series of one side of %s is like one of the other: %v, %v", l.where, e, left, right)
	}
	switch {
	case e.Op == parser.LOR:
		return left.and(right)
	case e.Op == parser.LAND || e.Op == parser.LUNLESS:
		return left
	case m.Card == parser.CardOneToMany:
		return right.and(setOf(m.Include))
	case m.Card == parser.CardManyToOne:
		return left.and(setOf(m.Include))
	case m.On:
		return setOf(m.MatchingLabels)
	}
	return left.without(m.MatchingLabels...)
}

func (l labelled) ofCall(e *parser.Call) labelSet {
	l.t.Helper()
	has := labelSet{}
	for _, arg := range e.Args {
		has = has.and(l.of(arg))
	}
	switch e.Func.Name {
	case "absent", "absent_over_time":
		fixed := labelSet{}
		parser.Inspect(e, func(node parser.Node, _ []parser.Node) error {
			if s, is := node.(*parser.VectorSelector); is {
				for _, m := range s.LabelMatchers {
					fixed[m.Name] = fixed[m.Name] || m.Type == labels.MatchEqual && m.Name != model.MetricNameLabel
				}
			}
			return nil
		})
		return fixed
	case "histogram_quantile":
		l.needs(has, "%s", e, model.BucketLabel)
		return has.without(model.BucketLabel)
	case "scalar":
		return labelSet{}
	case "label_replace", "label_join":
		l.t.Errorf("%s: this test does not know the labels of %s", l.where, e)
	}
	return has
}
