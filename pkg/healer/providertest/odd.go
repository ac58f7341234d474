package providertest

import (
	"maps"

	"github.com/csi-addons/node-healer/pkg/facts"
	"github.com/csi-addons/node-healer/pkg/healer"
)

// odd are changes that make unusual cases of another one. A provider may say of them
// what it likes, as long as it keeps the contract.
func odd() map[string]Change {
	all := map[string]Change{}
	for _, subject := range []map[string]Change{oddCases, oddMountPoints, oddSuperblocks, oddAnswers, oddDevices, oddNames} {
		maps.Copy(all, subject)
	}
	return all
}

// oddWhenSick are those that can spoil a sick case, too: in the others there is nothing
// left that could be sick, or nothing that a step could act on.
func oddWhenSick() map[string]Change {
	all := odd()
	for name := range oddMountPoints {
		delete(all, name)
	}
	for _, name := range []string{"zero", "no record, no mounts", "no superblocks", "no names at all"} {
		delete(all, name)
	}
	return all
}

func answer(a facts.Answer) Change {
	return func(c *healer.Case) { eachSuperblock(c, func(sb *facts.Superblock) { sb.Answer = a }) }
}

func write(w facts.Write) Change {
	return func(c *healer.Case) { eachSuperblock(c, func(sb *facts.Superblock) { sb.Write = w }) }
}

func eachMountPoint(c *healer.Case, change func(*healer.MountPoint)) {
	for i := range c.MountPoints {
		change(&c.MountPoints[i])
	}
}

func eachSuperblock(c *healer.Case, change func(*facts.Superblock)) {
	for dev, sb := range c.Superblocks {
		change(&sb)
		c.Superblocks[dev] = sb
	}
}
