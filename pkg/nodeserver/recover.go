package nodeserver

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"runtime/debug"

	"google.golang.org/grpc"
	"k8s.io/klog/v2"

	"github.com/csi-addons/node-healer/internal/printable"
	"github.com/csi-addons/node-healer/pkg/healer"
)

// errPanicked is all that a caller learns of a panic.
var errPanicked = toStatus(healer.Failed("internal error, see the log of the server", nil))

// logPanic is a recovery.RecoveryHandlerFuncContext. It logs a panic's value only if
// the runtime made it: any other may hold a part of the request.
func logPanic(ctx context.Context, value any) error {
	text := fmt.Sprintf("a value of type %T", value)
	var fault runtime.Error
	if err, ok := value.(error); ok && errors.As(err, &fault) {
		text = printable.Line(fault.Error(), logTextBytes)
	}
	method, _ := grpc.Method(ctx)
	klog.FromContext(ctx).Error(errPanicked, "Panic", keyMethod, method, keyPanic, text, keyStack, string(debug.Stack()))
	return errPanicked
}
