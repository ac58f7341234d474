package providertest

import (
	"fmt"
	"slices"
	"syscall"

	"github.com/csi-addons/node-healer/pkg/healer"
	"github.com/csi-addons/node-healer/pkg/host"
)

// odd turns a healthy case into those that nobody thinks of. What a provider
// says of them is its own business; that it says it properly is not.
func odd() map[string]func(*healer.Case) {
	noRecord := func(c *healer.Case) {
		c.Record = nil
		eachPlace(c, func(p *healer.Place) { p.Want = nil })
	}
	return map[string]func(*healer.Case){
		"zero":                  func(c *healer.Case) { *c = healer.Case{} },
		"no places":             func(c *healer.Case) { c.Places = nil },
		"places without a path": func(c *healer.Case) { eachPlace(c, func(p *healer.Place) { *p = healer.Place{} }) },
		"nothing mounted":       func(c *healer.Case) { eachPlace(c, func(p *healer.Place) { p.Stack = nil }) },
		"nobody looked":         func(c *healer.Case) { eachPlace(c, func(p *healer.Place) { p.Look = host.PathLook{} }) },
		"unknown roles":         func(c *healer.Case) { eachPlace(c, func(p *healer.Place) { p.Role = "odd" }) },
		"block":                 func(c *healer.Case) { c.Block = true },
		"no record":             noRecord,
		"no record, no mounts": func(c *healer.Case) {
			noRecord(c)
			eachPlace(c, func(p *healer.Place) { p.Stack = nil })
		},
		"empty record": func(c *healer.Case) {
			noRecord(c)
			c.Record = &healer.Record{}
		},
		"record of another boot": func(c *healer.Case) { c.BootID = "another" },
		"no superblocks":         func(c *healer.Case) { c.Superblocks = nil },
		"empty superblocks": func(c *healer.Case) {
			eachSuperblock(c, func(sb *host.Superblock) { *sb = host.Superblock{} })
		},
		"no device": func(c *healer.Case) {
			eachSuperblock(c, func(sb *host.Superblock) { sb.Device = nil })
		},
		"device gone": func(c *healer.Case) {
			eachSuperblock(c, func(sb *host.Superblock) { sb.Device = &host.BlockDevice{Missing: true} })
		},
		"not asked":                   answer(host.Answer{}),
		"silent":                      answer(host.Answer{Asked: true, Silent: true}),
		"stuck":                       answer(host.Answer{Asked: true, Silent: true, Stuck: true}),
		"ENOTCONN":                    answer(host.Answer{Asked: true, Op: "statx", Errno: syscall.ENOTCONN}),
		"no errno that anybody knows": answer(host.Answer{Asked: true, Errno: 4095}),
		"huge stacks": func(c *healer.Case) {
			eachPlace(c, func(p *healer.Place) { p.Stack = slices.Repeat(p.Stack, 1000) })
		},
		"many places": func(c *healer.Case) {
			for i := range 100 {
				for _, p := range c.Places[:min(2, len(c.Places))] {
					p.Path = fmt.Sprint(p.Path, i)
					p.Stack = slices.Clone(p.Stack)
					c.Places = append(c.Places, p)
				}
			}
		},
		"no names at all": func(c *healer.Case) {
			c.Volume, c.Driver, c.BootID = healer.Volume{}, "", ""
			eachPlace(c, func(p *healer.Place) {
				for i := range p.Stack {
					p.Stack[i] = host.Mount{}
				}
			})
		},
	}
}

func answer(a host.Answer) func(*healer.Case) {
	return func(c *healer.Case) { eachSuperblock(c, func(sb *host.Superblock) { sb.Answer = a }) }
}

func eachPlace(c *healer.Case, change func(*healer.Place)) {
	for i := range c.Places {
		change(&c.Places[i])
	}
}

func eachSuperblock(c *healer.Case, change func(*host.Superblock)) {
	for dev, sb := range c.Superblocks {
		change(&sb)
		c.Superblocks[dev] = sb
	}
}
