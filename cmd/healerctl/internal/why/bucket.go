package why

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/csi-addons/node-healer/cmd/healerctl/internal/kube"
	"github.com/csi-addons/node-healer/pkg/bucket"
)

// cosi is what an object of COSI says, of any kind and of both versions of the API: a field
// that a version or kind does not have is empty.
type cosi struct {
	metav1.ObjectMeta `json:"metadata"`

	Spec struct {
		// Of a BucketAccess; in v1alpha1 for one claim, with one Secret.
		BucketClaims          []bucketClaimAccess `json:"bucketClaims"`
		BucketClaimName       string              `json:"bucketClaimName"`
		CredentialsSecretName string              `json:"credentialsSecretName"`
	} `json:"spec"`
	Status struct {
		ReadyToUse bool `json:"readyToUse"`
		Error      *struct {
			Time    string `json:"time"`
			Message string `json:"message"`
		} `json:"error"`
		BoundBucketName string `json:"boundBucketName"`
		// v1alpha1.
		BucketReady   bool   `json:"bucketReady"`
		BucketName    string `json:"bucketName"`
		AccessGranted bool   `json:"accessGranted"`
	} `json:"status"`
}

type bucketClaimAccess struct {
	BucketClaimName  string `json:"bucketClaimName"`
	AccessSecretName string `json:"accessSecretName"`
}

// ready reports whether an object is what its creator wants.
func (c *cosi) ready() bool {
	return c.Status.ReadyToUse || c.Status.BucketReady || c.Status.AccessGranted
}

// secretFor returns the Secret of a BucketAccess for a claim; empty if it is not for that one.
func (c *cosi) secretFor(claim string) string {
	for _, b := range append(c.Spec.BucketClaims, bucketClaimAccess{c.Spec.BucketClaimName, c.Spec.CredentialsSecretName}) {
		if b.BucketClaimName == claim {
			return b.AccessSecretName
		}
	}
	return ""
}

// Bucket says where the provisioning of a BucketClaim stands, and which pods may have
// credentials that were replaced.
func Bucket(ctx context.Context, c Config, name string) (*Answer, error) {
	ctx, cancel := context.WithTimeout(ctx, apiTimeout)
	defer cancel()
	a := &api{c, &Answer{}}
	var claim *cosi
	var err error
	version := ""
	kind := func(resource string) schema.GroupVersionResource {
		return schema.GroupVersionResource{Group: "objectstorage.k8s.io", Version: version, Resource: resource}
	}
	for _, version = range []string{"v1alpha2", "v1alpha1"} {
		if claim, err = kube.Get[cosi](ctx, a.Client, kind("bucketclaims"), c.Namespace, name); !kube.UnknownKind(err) {
			break
		}
	}
	if kube.UnknownKind(err) {
		return nil, errors.New("the cluster does not know BucketClaims: COSI is not installed")
	} else if err != nil {
		return nil, err
	}
	a.Subject = "BucketClaim " + c.Namespace + "/" + name
	a.provisioning(claim, "BucketClaim", "DriverCreateBucket")
	bound := claim.Status.BoundBucketName + claim.Status.BucketName
	if bound == "" {
		a.Subject += ": not bound"
	} else {
		a.Subject += ": bound to Bucket " + bound
		b, err := kube.Get[cosi](ctx, a.Client, kind("buckets"), "", bound)
		if apierrors.IsNotFound(err) {
			a.add("BucketFailed", "Bucket "+bound+" does not exist", "find out who deleted it, and whether the storage still has the bucket")
		} else if a.read("Bucket "+bound, err) {
			a.provisioning(b, "Bucket", "DriverCreateBucket")
		}
	}
	err = kube.Each(ctx, a.Client, kind("bucketaccesses"), c.Namespace, "", func(access *cosi) {
		secret := access.secretFor(name)
		if secret == "" {
			return
		}
		if a.provisioning(access, "BucketAccess", "DriverGrantBucketAccess"); access.ready() {
			a.credentials(ctx, secret)
		}
	})
	a.read("BucketAccesses", err)
	a.sort()
	return a.Answer, nil
}

// provisioning says where an object of COSI stands.
func (a *api) provisioning(c *cosi, kind, call string) {
	name := kind + " " + c.Name
	describe := "kubectl describe " + strings.ToLower(kind) + " " + c.Name
	if a.Namespace != "" && kind != "Bucket" {
		describe += " -n " + a.Namespace
	}
	if c.DeletionTimestamp != nil {
		a.add("DeletePending", fmt.Sprintf("%s was deleted at %s, and waits for %s", name, c.DeletionTimestamp.Format(time.RFC3339), strings.Join(c.Finalizers, ", ")),
			describe+"; see the log of COSI's controller and of the driver. A BucketClaim waits for its BucketAccesses. Finalizers stay: without them the bucket is left behind, or deleted under its users")
	}
	switch failed := c.Status.Error; {
	case failed != nil:
		a.add(kind+"Failed", fmt.Sprintf("%s: %s (%s)%s", name, failed.Message, failed.Time, retries(failed.Message, call)), describe+"; see the log of the driver's pod")
	case !c.ready() && c.DeletionTimestamp == nil:
		a.add(kind+"NotReady", name+" is not ready, and no error says why", describe+"; see whether COSI's controller and the driver run, and their logs")
	}
}

// retries says what COSI does about a driver's answer.
func retries(message, call string) string {
	code := codeIn(message)
	for _, row := range bucket.COSICodes() {
		if code != "" && (row.Code == code || row.Code == "any other") && (row.Call == "" || row.Call == call) {
			does := map[bool]string{true: "tried again", false: "given up"}
			return fmt.Sprintf(". %s: %s by COSI's specification, %s by the stricter proposal", code, does[row.Retried], does[row.RetriedStrictly])
		}
	}
	return ""
}

// credentials names the pods that were started before a Secret last changed. Of the Secret
// its metadata is read only.
func (a *api) credentials(ctx context.Context, name string) {
	secret, err := a.Metadata.Resource(kube.Secrets).Namespace(a.Namespace).Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		a.add("SecretMissing", "Secret "+name+" does not exist", "see the log of the driver's pod (COSI's sidecar writes it)")
	}
	if !a.read("when Secret "+name+" last changed", err) {
		return
	}
	var changed time.Time
	for _, f := range secret.ManagedFields {
		if f.Time != nil && f.Time.After(changed) && f.FieldsV1 != nil && strings.Contains(f.FieldsV1.String(), `"f:data"`) {
			changed = f.Time.Time
		}
	}
	if changed.IsZero() {
		a.Unread = append(a.Unread, "when Secret "+name+" last changed: not known (its managedFields do not say)")
		return
	}
	err = kube.Each(ctx, a.Client, kube.Pods, a.Namespace, "", func(pod *corev1.Pod) {
		how := uses(pod, name)
		if how == "" || !slices.ContainsFunc(pod.Status.ContainerStatuses, func(c corev1.ContainerStatus) bool {
			return c.State.Running != nil && c.State.Running.StartedAt.Time.Before(changed)
		}) {
			return
		}
		a.add("SecretChanged", fmt.Sprintf("pod %s runs since before Secret %s last changed (%s), and has it %s", pod.Name, name, changed.UTC().Format(time.RFC3339), how),
			"if it is refused: restart its workload, as by kubectl rollout restart")
	})
	a.read("which pods have Secret "+name, err)
}

// uses says how a pod has a Secret; empty if it does not.
func uses(pod *corev1.Pod, secret string) (how string) {
	for _, v := range pod.Spec.Volumes {
		projected := v.Projected != nil && slices.ContainsFunc(v.Projected.Sources, func(s corev1.VolumeProjection) bool { return s.Secret != nil && s.Secret.Name == secret })
		if projected || v.Secret != nil && v.Secret.SecretName == secret {
			how = "mounted: the files follow within about a minute, an application that read them at its start does not"
		}
	}
	for _, c := range pod.Spec.Containers {
		env := slices.ContainsFunc(c.Env, func(e corev1.EnvVar) bool {
			return e.ValueFrom != nil && e.ValueFrom.SecretKeyRef != nil && e.ValueFrom.SecretKeyRef.Name == secret
		})
		from := slices.ContainsFunc(c.EnvFrom, func(e corev1.EnvFromSource) bool { return e.SecretRef != nil && e.SecretRef.Name == secret })
		if env || from {
			return "in its environment, which does not change while it runs"
		}
	}
	return how
}
