package engine

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"syscall"

	"github.com/csi-addons/node-healer/internal/node"
	"github.com/csi-addons/node-healer/internal/printable"
	"github.com/csi-addons/node-healer/pkg/facts"
	"github.com/csi-addons/node-healer/pkg/healer"
)

// maxPermissionText bounds the text of a permissionError in bytes: it is one part of a
// message that has a limit of its own. The fix comes first, because that message may
// keep no more than the first third.
const maxPermissionText = 499

// permissionError says what this process lacks for its own operation. The
// original stays within reach.
type permissionError struct {
	text string
	err  error
}

// Error implements error.
func (e *permissionError) Error() string { return e.text }

// Unwrap returns the original.
func (e *permissionError) Unwrap() error { return e.err }

// ExplainPermission returns, for an EPERM or EACCES that our own operation at a path
// got, an error that says which privilege is missing, how to fix it and how to check it.
// Every other error, and one for which own shows nothing missing, is returned as it is:
// a guess would mislead.
func ExplainPermission(operation, path string, err error, own func() (node.Privileges, error)) error {
	denied := errors.Is(err, syscall.EPERM) || errors.Is(err, syscall.EACCES)
	if !denied || errors.Is(err, healer.ErrRefused) {
		return err
	}
	p, readErr := own()
	if readErr != nil {
		return err
	}
	l, found := lackOf(p, errors.Is(err, syscall.EPERM))
	if !found {
		return err
	}
	text := fmt.Sprintf("%s is not permitted: %s. Fix: %s. Check on the node: %s. Denied at %q: %s", operation, l.what, l.fix, l.check, path, err)
	return &permissionError{printable.Line(text, maxPermissionText), err}
}

// ownOps are what a probe does before it reaches the storage: it clones the mount. The
// kernel alone decides who may do that.
var ownOps = []string{"open_tree", "mount_setattr"}

// explainInspection is the error of a probe that ended before it reached the storage,
// because of what this process lacks; nil for every other answer. The probe says
// nothing of the volume: to report every volume on the node would be a false alarm.
func explainInspection(path string, a facts.Answer) error {
	if a.Errno != syscall.EPERM || !slices.Contains(ownOps, a.Op) {
		return nil
	}
	err := ExplainPermission("a probe", path, fmt.Errorf("%s: %w", a.Op, a.Errno), node.OwnPrivileges)
	if lacks := (*permissionError)(nil); errors.As(err, &lacks) {
		return err
	}
	return nil
}

// lack is something that a privileged process has and this one does not have.
type lack struct{ what, fix, check string }

// self is the server's directory in /proc, for a shell on the node: its image
// has none.
const self = "/proc/$(pgrep -xo node-healer)"

// lackOf returns the first lack that explains a refusal. Missing capabilities lead to
// EPERM, or to EACCES on a path walk and in /proc; a seccomp filter mostly to EPERM, and
// a security module to either.
func lackOf(p node.Privileges, notPermitted bool) (lack, bool) {
	switch {
	case p.UserMap != "":
		return lack{
			"this process is in a user namespace, where its capabilities do not count for the node's mounts",
			"no hostUsers: false in the pod",
			"cat " + self + "/uid_map shows 0 0 4294967295, and not " + p.UserMap,
		}, true
	case len(p.Missing) > 0:
		return lack{
			fmt.Sprintf("this process lacks %s (CapEff %s)", strings.Join(p.Missing, ", "), p.Effective),
			"privileged: true, hostPID: true and Bidirectional mounts, as in deploy/daemonset",
			"grep CapEff " + self + "/status, or kubectl get ds -A -l app.kubernetes.io/name=node-healer -o jsonpath='{..privileged} {..hostPID}'",
		}, true
	case p.Label != "":
		return lack{
			"this process has all capabilities, and is confined by " + printable.Line(p.Label, 64),
			"privileged: true without appArmorProfile and seLinuxOptions",
			"cat " + self + "/attr/current; dmesg | grep -i denied",
		}, true
	case p.Filtered && notPermitted:
		return lack{
			"this process has all capabilities, and a seccomp filter",
			"privileged: true without seccompProfile",
			"grep Seccomp: " + self + "/status shows 0",
		}, true
	case p.First:
		return lack{
			"this process is the first of its pid namespace, and /proc/1 not the node's",
			"hostPID: true in the pod, as in deploy/daemonset",
			"kubectl get ds -A -l app.kubernetes.io/name=node-healer -o jsonpath='{..hostPID}'",
		}, true
	}
	return lack{}, false
}
