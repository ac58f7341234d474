package cluster

import (
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/labels"
)

// The values of the key loop of the settings, as of the flag --loop.
const (
	LoopOff     = "off"
	LoopObserve = "observe"
	LoopHeal    = "heal"
)

// LoopModes are all values of --loop.
func LoopModes() []string { return []string{LoopOff, LoopObserve, LoopHeal} }

// loopRule says what nodes do by themselves.
type loopRule struct {
	// NodeSelector are labels that a node has to have; none: every node.
	NodeSelector map[string]string `json:"nodeSelector"`
	Loop         string            `json:"loop"`
}

// parseLoop reads a list of rules in YAML.
func parseLoop(text string) (rules []loopRule, err error) {
	if rules, err = parseYAML[[]loopRule](text); err != nil {
		return nil, fmt.Errorf("not a list of nodeSelector and loop: %w", err)
	}
	for i, r := range rules {
		if r.Loop == "false" { // what YAML 1.1 makes of off
			r.Loop, rules[i].Loop = LoopOff, LoopOff
		}
		if !slices.Contains(LoopModes(), r.Loop) {
			return nil, fmt.Errorf("rule %d: %.40q is none of %s", i+1, r.Loop, strings.Join(LoopModes(), ", "))
		}
	}
	return rules, nil
}

// Loop returns what this node does by itself, by the first rule of the settings whose
// labels the node has; else what its flag says. While the settings were not read yet, or
// cannot be, or a rule asks for labels of a node that is not known, it is at most
// LoopObserve.
func (c *Cluster) Loop(flag string) string {
	s := c.currentSettings()
	if s.err != nil || !c.configMap.HasSynced() || !c.node.HasSynced() {
		return atMostObserve(flag)
	}
	node := c.ownNode()
	for _, r := range s.loop {
		switch {
		case len(r.NodeSelector) == 0:
			return r.Loop
		case node == nil:
			return atMostObserve(flag)
		case labels.SelectorFromSet(r.NodeSelector).Matches(labels.Set(node.Labels)):
			return r.Loop
		}
	}
	return flag
}

func atMostObserve(loop string) string {
	if loop == LoopHeal {
		return LoopObserve
	}
	return loop
}
