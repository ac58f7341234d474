package controller

import (
	"fmt"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/apimachinery/pkg/types"

	"github.com/csi-addons/node-healer/pkg/api"
)

// outcome is what one try at one node came to.
type outcome struct {
	// abnormal is nil where the node did not say.
	abnormal *bool
	message  string
	reason   string
	// code is of the call; empty: there was none.
	code string
	// class says whether another try may help; the zero value: none is needed.
	class api.Class
	// after is the shortest time before another try that the server asks for.
	after time.Duration
	found []finding
}

// finding is one condition of a volume, as its node tells it.
type finding struct {
	reason, message string
	// newStage is true where a new stage of the volume ends it, and newPod is the pod of which
	// a new one does; neither: nobody knows what ends it.
	newStage bool
	newPod   types.UID
}

// answered is the outcome of a call that the node answered.
func answered(abnormal bool, message string) outcome {
	o := outcome{abnormal: &abnormal, message: message, reason: ReasonHealthy, code: codes.OK.String()}
	if abnormal {
		o.reason = ReasonAbnormal
	}
	return o
}

// hindered is the outcome where no call was made.
func hindered(reason string, class api.Class, format string, args ...any) outcome {
	return outcome{reason: reason, class: class, message: fmt.Sprintf(format, args...)}
}

// failed is the outcome of a call that ended with an error. That of a TLS handshake has its text.
func failed(err error) outcome {
	s := status.Convert(err)
	o := byCode(s.Code())
	o.message, o.code = s.Message(), s.Code().String()
	for _, detail := range s.Details() {
		switch d := detail.(type) {
		case *errdetails.ErrorInfo:
			if d.GetDomain() == api.ErrorDomain {
				// Without a tier it would be no error to the job, which then says that the volume works.
				if tier := api.Tier(d.GetMetadata()["tier"]); tier == api.Transient || tier == api.Retriable || tier == api.Terminal {
					o.class = api.Class{Tier: tier, Type: api.Type(d.GetMetadata()["error_type"])}
				}
				if reason, known := answeredReasons[d.GetReason()]; known {
					o.reason = reason
				}
			}
		case *errdetails.RetryInfo:
			o.after = d.GetRetryDelay().AsDuration()
		}
	}
	return o
}

// byCode is the outcome of an error without details, which the server did not make.
func byCode(code codes.Code) outcome {
	switch code {
	case codes.Unavailable, codes.ResourceExhausted, codes.Canceled:
		return outcome{reason: ReasonGatewayUnreachable, class: passing}
	case codes.DeadlineExceeded:
		return outcome{reason: ReasonTimedOut, class: late}
	case codes.Aborted:
		return outcome{reason: ReasonVolumeBusy, class: passing}
	case codes.Unauthenticated, codes.PermissionDenied:
		return outcome{reason: ReasonCredentialsRefused, class: distrusted}
	case codes.NotFound:
		return outcome{reason: ReasonVolumeNotFound, class: final}
	case codes.Unimplemented:
		return outcome{reason: ReasonDisabled, class: final}
	default:
		return outcome{reason: ReasonOperationFailed, class: final}
	}
}

// weight is how much an outcome says, of those of one node: an error more than an abnormal
// volume, and that more than a healthy one.
func (o outcome) weight() int {
	switch {
	case o.abnormal == nil:
		return 3
	case *o.abnormal:
		return 2
	}
	return 1
}
