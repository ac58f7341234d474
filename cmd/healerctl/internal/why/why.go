// Package why finds out why a pod does not start, stop or read, and where a bucket stands.
// It asks the Kubernetes API with the rights of whoever runs it, and on the pod's node, as
// root, the kernel, kubelet's directories and the driver. It changes nothing, and advises
// nothing that may lose data: what can still write is stopped before its volume goes
// elsewhere, and neither finalizers nor directories are removed by hand.
package why

import (
	"fmt"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// order has the reasons of causes, the worst first: one that stands above another mostly
// explains it.
var order = []string{
	"MountHangs", "ProcessHangs", "DriverSilent", "NodeOutOfService", "NodeGone", "NodeUnreachable", "NodeNotReady", "ClaimLost", "ClaimNotFound",
	"AttachedElsewhere", "DriverNotRegistered", "AttachFailed", "ClaimPending", "VolumeUnhealthy", "DriverBusy", "MountFailed",
	"StillMounted", "StopFailed", "NotScheduled", "FinalizerPending", "OtherMountHangs", "Leftovers", "ContainerWaits",

	"BucketFailed", "BucketClaimFailed", "BucketAccessFailed", "DeletePending", "BucketNotReady", "BucketClaimNotReady", "BucketAccessNotReady",
	"SecretMissing", "SecretChanged",
}

// Cause is one thing that is in the way.
type Cause struct {
	Reason  string   `json:"reason"`
	Message string   `json:"message"`
	ToDo    []string `json:"to_do"`
}

// Answer is what was found.
type Answer struct {
	// Subject says what it is about, and how that stands.
	Subject string `json:"subject"`
	// Causes begin with the worst.
	Causes []Cause `json:"causes"`
	// Unread is what could not be read, with the right that is missing.
	Unread []string `json:"unread,omitempty"`
	// OnNode is the command that says what only the node can; empty if that was said.
	OnNode string `json:"on_node,omitempty"`
}

func (a *Answer) add(reason, message string, toDo ...string) {
	a.Causes = append(a.Causes, Cause{reason, message, toDo})
}

// sort puts the worst cause first. Those of one reason stay as they were found, and are counted
// where they are many: a server that is gone may have hundreds of mounts wait for it.
func (a *Answer) sort() {
	found := a.Causes
	a.Causes = []Cause{}
	for _, reason := range order {
		var same []Cause
		for _, c := range found {
			if c.Reason == reason && !slices.ContainsFunc(same, func(s Cause) bool { return s.Message == c.Message }) {
				same = append(same, c)
			}
		}
		if more := len(same) - maxNamed; more > 0 {
			same = same[:maxNamed]
			same[maxNamed-1].Message += fmt.Sprintf("; and %d more", more)
		}
		a.Causes = append(a.Causes, same...)
	}
}

// apiTimeout bounds all requests together: an API that answers none costs a person no more than
// that.
const apiTimeout = time.Minute

// api reads with the caller's rights, for an answer.
type api struct {
	Config
	*Answer
}

// read notes what could not be read, and reports whether it was. Which right is missing is in
// the API's own text. An object that is not there has been read.
func (a *api) read(what string, err error) bool {
	if err != nil && !apierrors.IsNotFound(err) {
		a.Unread = append(a.Unread, fmt.Sprintf("%s: %v", what, err))
	}
	return err == nil
}
