package healer

import (
	"cmp"
	"maps"
	"slices"
)

// adviceRank orders what a person should do about all that is wrong with a volume: what cures
// without any loss, then what saves what a later act would lose, and deleting pods last.
type adviceRank int

const (
	// adviceResume lets go on what was stopped.
	adviceResume adviceRank = iota
	// adviceSave saves what deleting a pod, or a check of the filesystem, would lose. Nothing
	// of adviceDelete is advised beside it.
	adviceSave
	// adviceStop ends what harms another volume.
	adviceStop
	// adviceRepair is about what is behind the mount: the disk, the server, the daemon.
	adviceRepair
	// adviceDelete may delete pods, or unmount. The advice of a vendor's reasons counts as such.
	adviceDelete
)

// adviceOf is the one table of all reasons of this package, and of whose advice comes first.
var adviceOf = map[Reason]struct {
	rank adviceRank
	// instead are the reasons whose advice this one makes needless: they pass with it.
	instead []Reason
}{
	DaemonStopped:     {adviceResume, []Reason{NotResponding, DaemonHung, ServerUnreachable, BackendUnreachable, SlowResponse}},
	DeviceMappingDead: {adviceResume, []Reason{NotResponding, IOError, FilesystemShutdown, ReadOnlyFilesystem, DeviceMissing, Frozen, SlowResponse}},

	ContainerOnBareDirectory: {rank: adviceSave},
	TargetNotEmpty:           {adviceSave, []Reason{NotMounted}},
	BackingFileGone:          {rank: adviceSave},
	DeviceReadError:          {adviceSave, []Reason{IOError}},
	DeviceSizeChanged:        {rank: adviceSave},

	ContainerOnOldDevice: {rank: adviceStop},

	DeviceMissing:         {adviceRepair, []Reason{IOError, NotResponding, FilesystemShutdown, ReadOnlyFilesystem}},
	PathsFailed:           {adviceRepair, []Reason{IOError, NotResponding, FilesystemShutdown, ReadOnlyFilesystem, DeviceMissing, SlowResponse}},
	DeviceReadOnly:        {adviceRepair, []Reason{ReadOnlyFilesystem}},
	ServerUnreachable:     {adviceRepair, []Reason{NotResponding, IOError, StaleFileHandle, SlowResponse, BackendUnreachable}},
	BackendUnreachable:    {adviceRepair, []Reason{NotResponding, SlowResponse}},
	DaemonHung:            {adviceRepair, []Reason{NotResponding, SlowResponse}},
	NotResponding:         {rank: adviceRepair},
	Frozen:                {rank: adviceRepair},
	SlowResponse:          {rank: adviceRepair},
	OutOfSpace:            {rank: adviceRepair},
	OutOfInodes:           {rank: adviceRepair},
	DriverReportsAbnormal: {rank: adviceRepair},

	DaemonGone:               {adviceDelete, []Reason{Disconnected}},
	FilesystemShutdown:       {adviceDelete, []Reason{IOError, ReadOnlyFilesystem, FilesystemErrors}},
	StagingNotMounted:        {adviceDelete, []Reason{NotMounted, StaleInContainers, ContainerKeptPlaceholder, ContainerUnverified}},
	NotMounted:               {rank: adviceDelete},
	WrongVolumeMounted:       {rank: adviceDelete},
	StackedMounts:            {rank: adviceDelete},
	Disconnected:             {rank: adviceDelete},
	StaleFileHandle:          {rank: adviceDelete},
	IOError:                  {rank: adviceDelete},
	ReadOnlyFilesystem:       {rank: adviceDelete},
	PermissionDenied:         {rank: adviceDelete},
	FilesystemErrors:         {rank: adviceDelete},
	NotABlockDevice:          {rank: adviceDelete},
	StaleInContainers:        {rank: adviceDelete},
	StagedWithoutPod:         {rank: adviceDelete},
	ContainerUnverified:      {rank: adviceDelete},
	ContainerKeptPlaceholder: {rank: adviceDelete},
}

// Reasons returns all reasons of this package, sorted.
func Reasons() []Reason { return slices.Sorted(maps.Keys(adviceOf)) }

func rankOf(r Reason) adviceRank {
	if of, known := adviceOf[r]; known {
		return of.rank
	}
	return adviceDelete
}

func (c Condition) rank() adviceRank {
	if c.SaveFirst {
		return adviceSave
	}
	return rankOf(c.Reason)
}

// MayDeletePods reports whether the advice of a reason may have a person delete pods. That of
// all others stands beside advice to save files first, and must not.
func MayDeletePods(r Reason) bool {
	return rankOf(r) == adviceDelete || r == ContainerOnBareDirectory || r == ContainerOnOldDevice
}

// Advice returns what a person should do about all that is wrong, wherever it is, each once
// and in the order in which it should be done. What passes with something else is left out,
// and so is what may delete a pod while files have to be saved first: they would go with it.
func (d Diagnosis) Advice() (all []string) {
	saves := slices.ContainsFunc(d.Conditions, func(c Condition) bool { return c.rank() == adviceSave && !d.needless(c) })
	var left []Condition
	for _, c := range d.Conditions {
		if c.Advice != "" && !d.needless(c) && (!saves || c.rank() != adviceDelete) {
			left = append(left, c)
		}
	}
	slices.SortStableFunc(left, func(a, b Condition) int {
		return cmp.Or(cmp.Compare(a.rank(), b.rank()), cmp.Compare(b.Status.Severity(), a.Status.Severity()),
			cmp.Compare(a.Reason, b.Reason), cmp.Compare(a.Advice, b.Advice))
	})
	for _, c := range left {
		if !slices.Contains(all, c.Advice) {
			all = append(all, c.Advice)
		}
	}
	return all
}

// needless reports whether what is wrong passes with something else that is wrong.
func (d Diagnosis) needless(c Condition) bool {
	return !c.SaveFirst && slices.ContainsFunc(d.Conditions, func(other Condition) bool { return slices.Contains(adviceOf[other.Reason].instead, c.Reason) })
}
