package bench

import (
	"fmt"
	"slices"
	"testing"

	mount "k8s.io/mount-utils"

	"github.com/csi-addons/node-healer/internal/node"
)

// TestList compares the facts of one volume with what most drivers do for them:
// read the whole table, and search it.
func TestList(t *testing.T) {
	wanted(t, "list")
	a := newAgentPropagatedMounts(t)
	volumes := ask[[]volumePaths](a, "lay out", layOutQuestion{Dir: t.TempDir(), Mounts: 1_000})
	got := ask[[]cost](a, "list", volumes[len(volumes)/2])
	list, facts := got[0], got[1]
	row("mount-utils List and search / facts of one volume, among 1,000 mounts, CPU",
		fmt.Sprintf("CPU %s / %s", micro(list.CPU), micro(facts.CPU)), ratio(list.CPU, facts.CPU), atLeast(100, ""))
	row("the same, wall", fmt.Sprintf("wall %s / %s", micro(list.Wall), micro(facts.Wall)), ratio(list.Wall, facts.Wall), untold(""))
}

// measureList returns the costs of both for one volume in the agent's own
// namespace.
func measureList(v volumePaths) ([]cost, error) {
	ns, err := node.OpenNamespace("", nil)
	if err != nil {
		return nil, err
	}
	defer ns.Close()
	mounter := mount.New("")
	list := func(int) error {
		all, err := mounter.List()
		for _, path := range []string{v.Published, v.Staged} {
			if !slices.ContainsFunc(all, func(m mount.MountPoint) bool { return m.Path == path }) {
				return fmt.Errorf("the list lacks %s: %w", path, err)
			}
		}
		return err
	}
	facts := func(int) error { return v.facts(ns) }
	// So many of the cheap one that the clock can tell.
	many := func(i int) error {
		for range listFactor {
			if err := facts(i); err != nil {
				return err
			}
		}
		return nil
	}
	got, err := inTurn(50, 20, list, many)
	if err != nil {
		return nil, err
	}
	got[1].Wall /= listFactor
	got[1].CPU /= listFactor
	return got, nil
}

// listFactor is how many facts are asked for against each list.
const listFactor = 100
