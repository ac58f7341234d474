package healer

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"unicode/utf8"

	"github.com/csi-addons/node-healer/pkg/host"
)

// maxPermissionText bounds the text of a permissionError: it is one part of a
// message that has a limit of its own. What helps stands first, because that
// message may keep no more than the first third.
const maxPermissionText = 499

// permissionError says what this process lacks for its own operation. The
// original stays within reach.
type permissionError struct {
	text string
	err  error
}

// Error implements error.
func (e *permissionError) Error() string { return e.text }

// Unwrap gives the original.
func (e *permissionError) Unwrap() error { return e.err }

// ExplainPermission makes of an EPERM or EACCES that our own operation at a path
// got an error that says what is missing, how to mend it and how to see it.
// Every other error, and one for which own shows nothing missing, comes back as
// it is: a guess would lead astray.
func ExplainPermission(operation, path string, err error, own func() (host.Privileges, error)) error {
	denied := errors.Is(err, syscall.EPERM) || errors.Is(err, syscall.EACCES)
	if !denied || errors.Is(err, ErrRefused) {
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
	return &permissionError{cut(text, maxPermissionText), err}
}

// explainStep is ExplainPermission for a step that ran.
func explainStep(s Step, err error) error {
	return ExplainPermission(s.Name, s.MountPoint.Path, err, host.OwnPrivileges)
}

// ownOps are what a probe does before it reaches the storage: it makes a clone of
// the mount. Who may do that, the kernel alone decides.
var ownOps = []string{"open_tree", "mount_setattr"}

// explainInspection is the error of a probe that ended before it reached the storage,
// because of what this process lacks; nil for every other answer. It says nothing
// of the volume: to call each volume on the node sick would be a false alarm.
func explainInspection(path string, a host.Answer) error {
	if a.Errno != syscall.EPERM || !slices.Contains(ownOps, a.Op) {
		return nil
	}
	err := ExplainPermission("a look", path, fmt.Errorf("%s: %w", a.Op, a.Errno), host.OwnPrivileges)
	if lacks := (*permissionError)(nil); errors.As(err, &lacks) {
		return err
	}
	return nil
}

// lack is something that a privileged process has and this one has not.
type lack struct{ what, fix, check string }

// self is the server's directory in /proc, for a shell on the node: its image
// has none.
const self = "/proc/$(pgrep -xo node-healer)"

// lackOf names the first of what is missing that explains a refusal. Missing
// capabilities give EPERM, or EACCES on a way through directories and in /proc;
// a filter mostly gives EPERM, and a security module either.
func lackOf(p host.Privileges, notPermitted bool) (lack, bool) {
	switch {
	case p.UserMap != "":
		return lack{
			"this process is in a user namespace, where its capabilities do not count for the node's mounts",
			"no hostUsers: false in the pod",
			"cat " + self + "/uid_map gives 0 0 4294967295, and not " + p.UserMap,
		}, true
	case len(p.Missing) > 0:
		return lack{
			fmt.Sprintf("this process lacks %s (CapEff %s)", strings.Join(p.Missing, ", "), p.Effective),
			"privileged: true, hostPID: true and Bidirectional mounts, as in deploy/daemonset",
			"grep CapEff " + self + "/status, or kubectl get ds -A -l app.kubernetes.io/name=node-healer -o jsonpath='{..privileged} {..hostPID}'",
		}, true
	case p.Label != "":
		return lack{
			"this process has all capabilities, and is confined by " + cut(p.Label, 64),
			"privileged: true without appArmorProfile and seLinuxOptions",
			"cat " + self + "/attr/current; dmesg | grep -i denied",
		}, true
	case p.Filtered && notPermitted:
		return lack{
			"this process has all capabilities, and a seccomp filter",
			"privileged: true without seccompProfile",
			"grep Seccomp: " + self + "/status gives 0",
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

// cut gives at most limit bytes of a text, and marks where it was cut.
func cut(text string, limit int) string {
	if len(text) <= limit {
		return text
	}
	const mark = "…"
	end := limit - len(mark)
	for !utf8.RuneStart(text[end]) {
		end--
	}
	return text[:end] + mark
}
