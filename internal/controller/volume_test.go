package controller

import (
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/csi-addons/node-healer/pkg/api"
)

func TestRequestIsAsKubeletPublishes(t *testing.T) {
	claim, pv := boundClaim()
	req := volume{claim, pv}.request("/k", "uid")
	// printf handle | sha256sum
	const staged = "/k/plugins/kubernetes.io/csi/driver/c2a116aa910d147bd5bdacc2f1cc4430148955f450654ed756e9c93de1b1e1d2/globalmount"
	if req.GetVolumeId() != "handle" || req.GetVolumePath() != "/k/pods/uid/volumes/kubernetes.io~csi/pv/mount" ||
		req.GetStagingTargetPath() != staged {
		t.Errorf("got %v", req)
	}
	pv.Spec.VolumeMode = ptr.To(corev1.PersistentVolumeBlock)
	req = volume{claim, pv}.request("/k", "uid")
	if req.GetVolumePath() != "/k/plugins/kubernetes.io/csi/volumeDevices/publish/pv/uid" ||
		req.GetStagingTargetPath() != "/k/plugins/kubernetes.io/csi/volumeDevices/staging/pv" {
		t.Errorf("got %v", req)
	}
}

func TestEphemeralClaimIsItsPods(t *testing.T) {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "app", UID: "app-uid"}, Spec: corev1.PodSpec{Volumes: []corev1.Volume{{
		Name: "scratch", VolumeSource: corev1.VolumeSource{Ephemeral: &corev1.EphemeralVolumeSource{}},
	}}}}
	claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: "app-scratch"}}
	if uses(pod, claim) {
		t.Error("a claim of that name which is another's")
	}
	claim.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(pod, corev1.SchemeGroupVersion.WithKind("Pod"))}
	if !uses(pod, claim) {
		t.Error("its own claim")
	}
}

// gatewayError is what a gateway answers that could not ask the API or the server.
func gatewayError(t *testing.T, code codes.Code, reason string) error {
	t.Helper()
	detailed, err := status.New(code, "try again").WithDetails(
		&errdetails.ErrorInfo{Reason: reason, Domain: api.ErrorDomain, Metadata: map[string]string{"tier": "transient", "error_type": "execution"}},
		&errdetails.RetryInfo{RetryDelay: durationpb.New(time.Second)})
	must(t, err)
	return detailed.Err()
}

func TestErrorsHaveTheServersClass(t *testing.T) {
	detailed, err := status.New(codes.Unknown, "disk").WithDetails(
		&errdetails.ErrorInfo{Reason: "OPERATION_FAILED", Domain: api.ErrorDomain, Metadata: map[string]string{"tier": "retriable", "error_type": "execution"}},
		&errdetails.RetryInfo{RetryDelay: durationpb.New(60e9)})
	must(t, err)
	foreign, err := status.New(codes.Unavailable, "").WithDetails(&errdetails.ErrorInfo{Reason: "X", Domain: "elsewhere", Metadata: map[string]string{"tier": "terminal"}})
	must(t, err)
	for name, tc := range map[string]struct {
		err    error
		reason string
		tier   api.Tier
		after  float64
	}{
		"the server's":  {err: detailed.Err(), reason: ReasonOperationFailed, tier: api.Retriable, after: 60},
		"not checked":   {err: gatewayError(t, codes.Unauthenticated, "CALLER_NOT_CHECKED"), reason: ReasonCallerNotChecked, tier: api.Transient, after: 1},
		"no server":     {err: gatewayError(t, codes.Aborted, "NODE_HEALER_UNREACHABLE"), reason: ReasonNodeHealerUnreachable, tier: api.Transient, after: 1},
		"of another":    {err: foreign.Err(), reason: ReasonGatewayUnreachable, tier: api.Transient},
		"unreachable":   {err: status.Error(codes.Unavailable, ""), reason: ReasonGatewayUnreachable, tier: api.Transient},
		"too late":      {err: status.Error(codes.DeadlineExceeded, ""), reason: ReasonTimedOut, tier: api.Transient},
		"busy":          {err: status.Error(codes.Aborted, ""), reason: ReasonVolumeBusy, tier: api.Transient},
		"no rights":     {err: status.Error(codes.Unauthenticated, ""), reason: ReasonCredentialsRefused, tier: api.Terminal},
		"not offered":   {err: status.Error(codes.Unimplemented, ""), reason: ReasonDisabled, tier: api.Terminal},
		"no such":       {err: status.Error(codes.NotFound, ""), reason: ReasonVolumeNotFound, tier: api.Terminal},
		"anything else": {err: status.Error(codes.DataLoss, ""), reason: ReasonOperationFailed, tier: api.Terminal},
	} {
		o := failed(tc.err)
		if o.reason != tc.reason || o.class.Tier != tc.tier || o.after.Seconds() != tc.after || o.code != status.Code(tc.err).String() || o.abnormal != nil {
			t.Errorf("%s: got %+v", name, o)
		}
	}
}
