package healer

import (
	"errors"
	"fmt"
	"time"
)

// A step of the cost Restage has the driver stage the volume anew. Between what it takes
// off the staging mount point and what the driver mounts there, a kill leaves that bare.
// Only the record, which is written before, tells such a mount point from one that kubelet
// or the driver is just about to use.

// RestageOrder says what a driver needs to stage a volume anew.
type RestageOrder string

// The orders.
const (
	// StageFirst calls the driver over the dead mount. That is unmounted only if the
	// driver refuses with INTERNAL or FAILED_PRECONDITION.
	StageFirst RestageOrder = "stage-first"
	// UnmountFirst unmounts the dead mount, and then calls the driver.
	UnmountFirst RestageOrder = "unmount-first"
)

// ParseRestageOrder reads an order.
func ParseRestageOrder(text string) (RestageOrder, error) {
	if o := RestageOrder(text); o == StageFirst || o == UnmountFirst {
		return o, nil
	}
	return "", fmt.Errorf("%.40q is neither %s nor %s", text, StageFirst, UnmountFirst)
}

// StageRequest is the part of CSI's NodeStageVolumeRequest that the node does not know.
type StageRequest struct {
	// Called is true where it is what a caller says, who can send other secrets.
	Called bool
	Block  bool
	// AccessMode is the name that CSI gives it; if it is empty, it follows from the first
	// access mode of the PersistentVolume, VolumeAccessMode, and from what the driver
	// offers.
	AccessMode, VolumeAccessMode string
	FSType                       string
	MountFlags                   SecretList
	// FSGroup is true if a pod that uses the volume has an fsGroup, or the caller names one.
	FSGroup        bool
	PublishContext Secrets
	VolumeContext  Secrets
	Secrets        Secrets
	// Inputs is where that comes from, also where it cannot be told exactly.
	Inputs StageInputs
}

// StageInputs is which PersistentVolume and Secret a driver is called with; zero if that is not
// known, or another one's word.
type StageInputs struct {
	// Version differs where one of them does.
	Version string
	// Written is when one of them was last changed.
	Written time.Time
}

// Restaging reports whether a step began to have the volume staged anew, and what is staged
// has not answered since.
func (c Case) Restaging() bool {
	return c.RecordOfThisBoot() && c.Record.Restaging && !c.StagedAnswers()
}

// StagedAnswers reports whether what is staged works.
func (c Case) StagedAnswers() bool {
	staged, found := c.Staged()
	if !found || !staged.Mounted() {
		return false
	}
	sb := c.Superblock(staged)
	// A daemon answers for its root from memory, and gives up later.
	return sb.Answer.Asked && !sb.Answer.TimedOut && sb.Answer.Errno == 0 && !c.LookupFailed(sb.Lookup)
}

// ErrNotWanted is that of a step which brought what no pod wants any more.
var ErrNotWanted = errors.New("no pod wants the volume any more")
