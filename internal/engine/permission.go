package engine

import (
	"errors"
	"fmt"
	"slices"
	"syscall"

	"github.com/csi-addons/node-healer/internal/printable"
	"github.com/csi-addons/node-healer/internal/privilege"
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

func (e *permissionError) Error() string { return e.text }

func (e *permissionError) Unwrap() error { return e.err }

// ExplainPermission returns, for an EPERM or EACCES that our own operation at a path
// got, an error that says which privilege is missing, how to fix it and how to check it.
// Every other error, and one for which own shows nothing missing, is returned as it is:
// a guess would mislead.
func ExplainPermission(operation, path string, err error, own func() (privilege.Privileges, error)) error {
	denied := errors.Is(err, syscall.EPERM) || errors.Is(err, syscall.EACCES)
	if !denied || errors.Is(err, healer.ErrRefused) {
		return err
	}
	p, readErr := own()
	if readErr != nil {
		return err
	}
	l, found := p.Lack(errors.Is(err, syscall.EPERM))
	if !found {
		return err
	}
	text := fmt.Sprintf("%s is not permitted: %s. Fix: %s. Check on the node: %s. Denied at %q: %s", operation, l.What, l.Fix, l.Check, path, err)
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
	err := ExplainPermission("a probe", path, fmt.Errorf("%s: %w", a.Op, a.Errno), privilege.Own)
	if lacks := (*permissionError)(nil); errors.As(err, &lacks) {
		return err
	}
	return nil
}
