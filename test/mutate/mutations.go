package main

// mutation is a line that keeps data safe, broken, and the tests that have to notice.
type mutation struct {
	name       string
	file       string
	from, to   string
	tests, run string // the package, and the tests in it
}

const integration = "test/integration"

// mutations are those of the transaction that puts a mount back (place, finalize), of that
// in containers (swap), of a restage, of identity, of namespaces, of the gate and of the locks.
var mutations = []mutation{
	{
		name: "place: a placeholder is writable", file: "internal/ops/clone.go",
		from: "mount.AddAttr(fd, facts.AttrPlaceholder, unix.MS_PRIVATE)", to: "mount.AddAttr(fd, 0, unix.MS_PRIVATE)",
		tests: integration, run: "TestUnpublishAtEveryInstant|TestReadOnlyAtEveryInstant|TestKilledBetweenPlaceAndFinalize",
	},
	{
		name: "place: a placeholder shares its events", file: "internal/ops/clone.go",
		from: "mount.AddAttr(fd, facts.AttrPlaceholder, unix.MS_PRIVATE)", to: "mount.AddAttr(fd, facts.AttrPlaceholder, 0)",
		tests: integration, run: "TestCloneIsPrivate",
	},
	{
		name: "place: a subdirectory may be a link into another filesystem", file: "internal/ops/clone.go",
		from: "openBeneath(from, sub, unix.RESOLVE_NO_XDEV)", to: "openBeneath(from, sub, 0)",
		tests: integration, run: "TestRebindStaysInTheVolume",
	},
	{
		name: "place: files in the directory are hidden", file: "internal/ops/place_directory.go",
		from: "if !empty {", to: "if !empty && false {",
		tests: integration, run: "TestTargetNotEmpty|TestPlaceChecks",
	},
	{
		name: "place: what answers again is replaced", file: "internal/ops/dead.go",
		from: "if d.Ended {", to: "if d.Ended || true {",
		tests: "internal/ops", run: "TestReplaceOfWhatAnswers",
	},
	{ // that the dead mount is topmost, and on ours, is checked more than once before
		name: "place: what stands on or in a dead mount is taken off with it", file: "internal/ops/unmount.go",
		from: "if copies[at] == 0 {", to: "if copies[at] == 0 && false {",
		tests: "internal/ops", run: "TestDetachTopKeepsWhatStandsInIt",
	},
	{
		name: "place: what covers a dead mount appears on its peers", file: "internal/ops/place.go",
		from: "if err := mount.AddAttr(fd, 0, unix.MS_PRIVATE); err != nil {", to: "if err := mount.AddAttr(fd, 0, 0); err != nil {",
		tests: integration, run: "TestCover|TestKillCovering",
	},
	{
		name: "finalize: what arrived meanwhile is not seen", file: "internal/ops/place.go",
		from: "func (p *placement) alone() error { return p.target.checkStack(p.ours, p.parent) }", to: "func (p *placement) alone() error { return nil }",
		tests: integration, run: "TestPublishOnTop|TestFinalizeChecks",
	},
	{
		name: "finalize: what lies beneath something new stays writable", file: "internal/ops/finalize.go",
		from: "mount.SetAttr(p.clone, facts.AttrPlaceholder, 0); backErr != nil", to: "error(nil); backErr != nil",
		tests: integration, run: "TestPublishOnTop|TestFinalizeChecks",
	},
	{
		name: "finalize: copies in other namespaces stay read-only", file: "internal/ops/finalize.go",
		from: "left = copies.set(q.Attr); left != 0", to: "left = 0; left != 0",
		tests: integration, run: "TestCopies|TestCopiesAfterAKill",
	},
	{
		name: "finalize: an unfinished mount has no mark", file: "internal/ops/finalize.go",
		from: "p.set(q.Attr|facts.AttrUnfinalized, 0)", to: "p.set(q.Attr, 0)",
		tests: integration, run: "TestKill|TestCopiesAfterAKill|TestKillReplacing",
	},
	{
		name: "swap: a killed one leaves no guard", file: "internal/ops/container_swap.go",
		from: "w.Attr|facts.AttrGuard", to: "w.Attr",
		tests: integration, run: "TestKillInContainer|TestKillInContainerShared|TestKillInContainerNested|TestInContainerReadOnlyAtEveryInstant|TestKillCoverInContainer|TestCopiesAfterAKill",
	},
	{
		name: "swap: what answers again is detached", file: "internal/ops/container_nested.go",
		from: "case s.position == facts.BeneathDead &&", to: "case s.position == facts.BeneathDead && false &&",
		tests: "internal/ops", run: "TestSwapIsResumed",
	},
	{
		name: "swap: attributes that changed are not seen", file: "internal/ops/container_swap.go",
		from: "now.Attr&facts.AttrSettable != d.Attr&facts.AttrSettable", to: "now.Attr == d.Attr && false",
		tests: "internal/ops", run: "TestSwapIsRefused|TestSwap",
	},
	{
		name: "swap: a shared parent mount passes the new mount on", file: "internal/ops/container_swap.go",
		from: "!known || below.Propagation.Shared != 0", to: "!known || below.Propagation.Shared != 0 && false",
		tests: integration, run: "TestInContainerPropagation|TestInContainerLeftAlone|TestInContainerApplicationsNamespaces",
	},
	{
		name: "identity: another serial number passes", file: "pkg/healer/identity.go",
		from: "part.recorded == \"\" || part.recorded == part.now", to: "part.recorded == \"\" || part.now == \"\" || part.recorded == part.now",
		tests: "internal/engine", run: "TestDiffers|TestProveIdentityOfADevice|TestProveIdentityWithoutADevice",
	},
	{
		name: "identity: a smaller device passes", file: "pkg/healer/identity.go",
		from: "now.Size < recorded.Size", to: "false",
		tests: "internal/engine", run: "TestDiffers|TestProveIdentityOfADevice|TestProveIdentityWithoutADevice",
	},
	{
		name: "identity: a clone with the same filesystem UUID passes", file: "internal/engine/admit.go",
		from: "id.DMUUID == \"\" && !named(c, staged)", to: "id.DMUUID == \"\" && staged.Path == \"-\"",
		tests: "internal/engine", run: "TestDiffers|TestProveIdentityOfADevice|TestProveIdentityWithoutADevice",
	},
	{
		name: "identity: a container's mount that came later is taken for the volume's", file: "internal/engine/container_proof.go",
		from: "m.Mount.ID != 0 && m.Mount.ID <= f.Newest", to: "m.Mount.ID != 0 && f.Newest != 0",
		tests: "internal/engine", run: "TestProve",
	},
	{
		name: "identity: another directory of the NFS server passes in a container", file: "internal/engine/container_proof.go",
		from: "case m.Mount.Source != s.now.Source:", to: "case m.Mount.Source != s.now.Source && false:",
		tests: "internal/engine", run: "TestProveOnNFS",
	},
	{
		name: "identity: a stale root passes", file: "internal/engine/admit.go",
		from: "case mountPoint.Stale():", to: "case mountPoint.Stale() && false:",
		tests: "internal/engine", run: "TestProveIdentityWithoutADevice",
	},
	{
		name: "identity: the caller's word is enough for a step without a source", file: "internal/engine/admit.go",
		from: "case !c.Proven():", to: "case !c.Proven() && false:",
		tests: "internal/engine", run: "TestProveVolume",
	},
	{
		name: "namespaces: one that a pod's user made is entered", file: "internal/ops/namespaces.go",
		from: "	if owned {", to: "	if owned || true {",
		tests: "internal/ops", run: "TestNamespacesOfAnotherOwner",
	},
	{
		name: "restage: the umount takes another mount with it", file: "internal/ops/restage.go",
		from: "err = target.checkTakesOnly(m.Ref(), dead.isCopy)", to: "_ = target.checkTakesOnly(m.Ref(), dead.isCopy)",
		tests: integration, run: "TestRestageTakesNoOtherMount",
	},
	{
		name: "restage: what is bare is staged, whatever it was", file: "pkg/healer/provider/driver/restage.go",
		from: "return staged, c.Restaging() && isFUSE(", to: "return staged, true || c.Restaging() && isFUSE(",
		tests: integration, run: "TestBlankDisk",
	},
	{
		name: "gate: a container that is not proven shows that a volume is wanted", file: "internal/wanted/wanted.go",
		from: "in.Proof != \"\" && (in.PodUID", to: "(in.PodUID",
		tests: "internal/wanted", run: "Test.*",
	},
	{
		name: "gate: it is not asked again before a mount becomes writable", file: "internal/node/place.go",
		from: "err = revalidate(ctx)\n", to: "err = nil\n",
		tests: integration, run: "TestNoLongerWanted|TestUnwantedWhileReplacing",
	},
	{
		name: "gate: an API that does not answer is consent", file: "internal/cluster/wanted.go",
		from: "if w.unavailable != nil {", to: "if w.unavailable != nil && false {",
		tests: "internal/cluster", run: "TestContainerDuringAnOutage|TestStep",
	},
	{
		name: "gate: a step goes by what is remembered", file: "internal/cluster/view.go",
		from: "volume: name, live: true}", to: "volume: name, live: false}",
		tests: "internal/cluster", run: "TestInformerThatLags|TestKillSwitchThatTheInformerMissed",
	},
	{
		name: "gate: a denial of the API is an outage", file: "internal/cluster/view_read.go",
		from: "case known && isUnavailable(err):", to: "case known:",
		tests: "internal/cluster", run: "TestContainerDuringADenial",
	},
	{
		name: "gate: during an outage an older mode counts", file: "internal/cluster/reader.go",
		from: "if err == nil && order > 0 {", to: "if err == nil && order > 0 && false {",
		tests: "internal/cluster", run: "TestContainerDuringAnOutage",
	},
	{
		name: "gate: an informer that lags undoes a kill switch", file: "internal/cluster/settings.go",
		from: "order < 0 && !now", to: "order < 0 && !now && false",
		tests: "internal/cluster", run: "TestKillSwitchIsNotForgotten",
	},
	{
		name: "gate: the cluster is not asked again before a mount becomes writable", file: "internal/cluster/gate.go",
		from: "if err := p.ask(ctx); err != nil {\n\t\treturn fmt.Errorf(", to: "if err := error(nil); err != nil {\n\t\treturn fmt.Errorf(",
		tests: "internal/cluster", run: "TestStep",
	},
	{
		name: "locks: two heals on one filesystem", file: "internal/engine/admit.go",
		from: "if err := lock.add(key{superblock: s.Source}); err != nil {", to: "if err := error(nil); err != nil {",
		tests: "internal/engine", run: "TestSuperblockIsHealedForOneVolumeAtATime|TestOneOfThemIsBusy",
	},
	{
		name: "locks: a heal begins beside another", file: "internal/engine/locks.go",
		from: "other != nil && other != l && (!l.checks || !other.checks)", to: "other != nil && other != l && !l.checks && other.checks",
		tests: "internal/engine", run: "TestSameVolumeByDriverAndID",
	},
	{
		name: "locks: a check that a heal overtook is believed", file: "internal/engine/locks.go",
		from: "	if !l.preempted {\n		return nil\n	}", to: "	return nil",
		tests: "internal/engine", run: "TestOneCallForEachVolume|TestSameVolumeByDriverAndID|TestManyCallersOnOneVolume|TestHealPreemptsACheck|TestCheckThatSaves",
	},
}
