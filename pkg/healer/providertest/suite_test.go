package providertest

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/csi-addons/node-healer/pkg/healer"
)

type provider func(healer.Case) (healer.Finding, error)

func (provider) Name() string { return "sample" }

func (p provider) Examine(c healer.Case) (healer.Finding, error) {
	return p(c)
}

var healthy = Volume("driver.example", "fuse.sample")

// good keeps the contract: it finds empty mount points, and offers to fill them.
func good(c healer.Case) (healer.Finding, error) {
	f := healer.Finding{Mine: true}
	for _, p := range c.MountPoints {
		if len(p.Stack) > 0 || p.Path == "" {
			continue
		}
		f.Conditions = append(f.Conditions, healer.Condition{
			Status: healer.Degraded, Reason: healer.NotMounted, MountPoint: p.Path, Message: "it is empty", Advice: "wait", Acute: true,
		})
		f.Steps = append(f.Steps, healer.Step{
			Name: "rebind", MountPoint: p, Heals: []healer.Reason{healer.NotMounted}, Refused: "nothing to bind from",
		})
	}
	return f, nil
}

func TestGoodProviderPasses(t *testing.T) {
	Run(t, provider(good), Cases{Healthy: healthy, Sick: map[string]func() healer.Case{"empty": empty}})
}

func empty() healer.Case {
	return Volume("driver.example", "fuse.sample", func(c *healer.Case) { c.MountPoints[0].Stack = nil })()
}

func TestBrokenProvidersAreCaught(t *testing.T) {
	// change breaks one thing in what the good provider says of an empty mount point.
	change := func(f func(*healer.Condition, *healer.Step)) provider {
		return func(c healer.Case) (healer.Finding, error) {
			found, err := good(c)
			f(&found.Conditions[0], &found.Steps[0])
			return found, err
		}
	}
	calls := 0
	for want, p := range map[string]provider{
		"changed the case": func(c healer.Case) (healer.Finding, error) {
			c.MountPoints[1].Stack[0].Path = "/x"
			return good(c)
		},
		"differ": func(c healer.Case) (healer.Finding, error) {
			f, err := good(c)
			if calls++; calls%2 == 0 {
				return healer.Finding{}, errors.New("not again")
			}
			return f, err
		},
		"not the provider's": func(c healer.Case) (healer.Finding, error) {
			f, err := good(c)
			f.Mine = false
			return f, err
		},
		"its note ends with a full stop":          change(func(_ *healer.Condition, s *healer.Step) { s.Note = "done." }),
		"its message is empty":                    change(func(c *healer.Condition, _ *healer.Step) { c.Message = "" }),
		"its message is longer than 512 bytes":    change(func(c *healer.Condition, _ *healer.Step) { c.Message = strings.Repeat("x", 513) }),
		"its message begins or ends with a space": change(func(c *healer.Condition, _ *healer.Step) { c.Message = " x" }),
		"no status":                          change(func(c *healer.Condition, _ *healer.Step) { c.Status = "" }),
		"not CamelCase":                      change(func(c *healer.Condition, _ *healer.Step) { c.Reason = "not-mounted" }),
		"acute at no mount point":            change(func(c *healer.Condition, _ *healer.Step) { c.MountPoint = "/x" }),
		"does not have":                      change(func(c *healer.Condition, _ *healer.Step) { c.MountPoint, c.Acute = "/x", false }),
		"its message quotes a secret":        change(func(c *healer.Condition, _ *healer.Step) { c.Message = "mounted with " + secret }),
		"its advice is empty":                change(func(c *healer.Condition, _ *healer.Step) { c.Advice = "" }),
		"not kebab-case":                     change(func(_ *healer.Condition, s *healer.Step) { s.Name = "Rebind it" }),
		"is at no mount point":               change(func(_ *healer.Condition, s *healer.Step) { s.MountPoint.Path = "/x" }),
		"has no cost":                        change(func(_ *healer.Condition, s *healer.Step) { s.Cost = healer.Delegate - 1 }),
		"heals nothing":                      change(func(_ *healer.Condition, s *healer.Step) { s.Heals = nil }),
		"exactly one of Refused":             change(func(_ *healer.Condition, s *healer.Step) { s.Refused = "" }),
		"its refusal has control characters": change(func(_ *healer.Condition, s *healer.Step) { s.Refused = "no.\n" }),
		"identity cannot be proven": change(func(_ *healer.Condition, s *healer.Step) {
			s.Refused, s.Run = "", func(context.Context, func(context.Context) error) error { return nil }
		}),
		"offered twice": func(c healer.Case) (healer.Finding, error) {
			f, err := good(c)
			f.Steps = append(f.Steps, f.Steps...)
			return f, err
		},
	} {
		var got strings.Builder
		suite{p, Cases{}}.judge(empty, func(format string, args ...any) { fmt.Fprintf(&got, format+"\n", args...) })
		if !strings.Contains(got.String(), want) {
			t.Errorf("%q was not caught: %q", want, got.String())
		}
	}
	suite{provider(good), Cases{}}.judge(empty, t.Errorf)
}
