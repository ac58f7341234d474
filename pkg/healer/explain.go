package healer

// Explainer is a provider that says what its conditions mean: `healerctl explain` shows it.
type Explainer interface {
	Provider
	// Explain returns each condition that the provider finds, with its status, reason,
	// message and advice.
	Explain() []Condition
}

// Explained returns what the providers say of their conditions, in their order.
func Explained(providers []Provider) (all []Condition) {
	for _, p := range providers {
		if e, explains := p.(Explainer); explains {
			all = append(all, e.Explain()...)
		}
	}
	return all
}
