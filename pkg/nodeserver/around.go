package nodeserver

import (
	"context"
	"errors"
	"fmt"
	"path"
	"runtime"
	"runtime/debug"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/klog/v2"

	"github.com/csi-addons/node-healer/internal/printable"
	"github.com/csi-addons/node-healer/pkg/api/adminpb"
	"github.com/csi-addons/node-healer/pkg/api/healerpb"
	"github.com/csi-addons/node-healer/pkg/healer"
)

// errNotOffered is the error of a method that this server does not have in any mode: it
// is no CSI driver, and stages and publishes nothing.
var errNotOffered = errors.New("this server does not offer the method")

// errPanicked is all that a caller learns of a panic.
var errPanicked = toStatus(healer.Failed("internal error, see the log of the server", nil))

// around makes a call, of the Admin service for root only: it survives a panic, gives an error
// its details, and logs.
func around(ctx context.Context, method string, call func() error) (err error) {
	started := time.Now()
	defer func() {
		if p := recover(); p != nil {
			logPanic(ctx, method, p)
			err = errPanicked
		}
		if method != healerpb.HealerNode_NodeHealer_FullMethodName { // which has a line of its own
			klog.FromContext(ctx).V(verbosityCalls).Info("Call", keyMethod, method, keyCode, status.Code(err).String(),
				keyDuration, time.Since(started).Round(time.Microsecond).String())
		}
	}()
	p, known := peerOf(ctx)
	if path.Dir(method) == "/"+adminpb.Admin_ServiceDesc.ServiceName && (!known || p.UID != 0) {
		// Others may heal by path, and not act on what they cannot name.
		return refused("only root may call the Admin service")
	}
	err = call()
	// The methods that generated code answers for us (csi.UnimplementedNodeServer) have no
	// details, by which a program could tell them from those that --mode=off turns off.
	if s := status.Convert(err); s.Code() == codes.Unimplemented && len(s.Proto().GetDetails()) == 0 {
		err = toStatus(errNotOffered)
	}
	return err
}

// logPanic logs a panic's value only if the runtime made it: any other may hold a part of the
// request.
func logPanic(ctx context.Context, method string, value any) {
	text := fmt.Sprintf("a value of type %T", value)
	var fault runtime.Error
	if err, ok := value.(error); ok && errors.As(err, &fault) {
		text = printable.Line(fault.Error(), logTextBytes)
	}
	klog.FromContext(ctx).Error(errPanicked, "Panic", keyMethod, method, keyPanic, text, keyStack, string(debug.Stack()))
}
