package healer

import "errors"

// Rule is what refused a step. There are few, so that metrics can have it as a label.
type Rule string

// The rules.
const (
	// RuleProvider: a provider knows that the step must not run in this case.
	RuleProvider Rule = "provider"
	// RuleSickSource: the filesystem that the step would bring is sick itself.
	RuleSickSource Rule = "sick-source"
	// RuleIdentity: it is not proven that the storage is the volume's.
	RuleIdentity Rule = "identity"
	// RuleMode: the flags, the settings or an annotation allow checks only.
	RuleMode Rule = "mode"
	// RuleDrain: the node is being drained.
	RuleDrain Rule = "drain"
	// RuleDriverGrace: the driver's pod has not been ready for long.
	RuleDriverGrace Rule = "driver-grace"
	// RuleSelfRepair: the driver repairs this itself.
	RuleSelfRepair Rule = "self-repair"
	// RuleWanted: nothing proves that a pod wants the mount point.
	RuleWanted Rule = "wanted"
	// RuleWrite: nothing proves that this node may write to the device.
	RuleWrite Rule = "write"
	// RuleAPI: the Kubernetes API did not answer, or may not show yet that a pod has ended.
	RuleAPI Rule = "api"
	// RuleShutdown: the server is about to end.
	RuleShutdown Rule = "shutdown"
	// RuleOther: the refusal does not say.
	RuleOther Rule = "other"
)

// RefusedBy returns err as the refusal of a rule, with the same text; nil for nil.
func RefusedBy(rule Rule, err error) error {
	if err == nil {
		return nil
	}
	return refusalOf{rule, err}
}

// RuleOf returns the rule of a refusal.
func RuleOf(err error) Rule {
	var r refusalOf
	if !errors.As(err, &r) {
		return RuleOther
	}
	return r.rule
}

type refusalOf struct {
	rule Rule
	error
}

func (r refusalOf) Unwrap() error { return r.error }
