package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/maphash"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/csi-addons/node-healer/internal/intree"
	"github.com/csi-addons/node-healer/pkg/healer"
)

// inputsTTL is how long what was read of a PersistentVolume and its Secret counts. They are not
// watched: nothing grants this server to list Secrets.
const inputsTTL = time.Minute

// Inputs returns which PersistentVolume and Secret a driver would be called with, as they were
// within the last minute.
func (c *Cluster) Inputs(ctx context.Context, of healer.Case) (in healer.StageInputs, err error) {
	key := volumeKey{of.Driver, of.Volume.ID}
	if known, kept := c.inputs.Get(key); kept || len(of.MountPoints) == 0 {
		in, _ = known.(healer.StageInputs)
		return in, nil
	}
	c.inputs.Add(key, in, inputsTTL) // also one that cannot be read is read again then
	w := c.recall(ctx, nameAt(of, of.MountPoints[0]), "")
	pv, err := c.persistentVolume(ctx, of, w)
	if err != nil {
		return in, err
	}
	if _, in, err = c.stageSecret(ctx, pv); !isUnavailable(err) {
		c.inputs.Add(key, in, inputsTTL)
	}
	return in, err
}

// persistentVolume reads the one PersistentVolume that pods of this node have of a volume.
func (c *Cluster) persistentVolume(ctx context.Context, of healer.Case, w *view) (*corev1.PersistentVolume, error) {
	var names []string
	for _, b := range w.volumes {
		if b.matches && !slices.Contains(names, b.pv.Name) {
			names = append(names, b.pv.Name)
		}
	}
	if len(names) != 1 {
		return nil, fmt.Errorf("%d PersistentVolumes of driver %s have this handle, and what a driver is told comes from the one of a volume (inline volumes have none)", len(names), healer.QuoteName(of.Driver))
	}
	pv, err := whole(ctx, c.reader, volumeKind, "", names[0])
	switch {
	case err != nil:
		return nil, err
	case pv.Spec.CSI == nil && intree.CSI(pv) != nil:
		return nil, fmt.Errorf("PersistentVolume %s is of an in-tree plugin, and what kubelet tells the driver that it was migrated to is not known here", pv.Name)
	case pv.Spec.CSI == nil || pv.Spec.CSI.Driver != of.Driver || pv.Spec.CSI.VolumeHandle != of.Volume.ID:
		return nil, fmt.Errorf("PersistentVolume %s is of another volume now", pv.Name)
	}
	return pv, nil
}

// stageSecret reads the Secret that a PersistentVolume names, if it does. Its error names neither
// the Secret nor the namespace, which need not be the claim's, but the Role that is missing.
func (c *Cluster) stageSecret(ctx context.Context, pv *corev1.PersistentVolume) (secrets healer.Secrets, in healer.StageInputs, err error) {
	in = healer.StageInputs{Version: contentOf(pv.UID, pv.Spec), Written: written(pv)}
	ref := pv.Spec.CSI.NodeStageSecretRef
	if ref == nil {
		return nil, in, nil
	}
	secret, err := whole(ctx, c.reader, secretKind, ref.Namespace, ref.Name)
	if err != nil {
		if answer := apierrors.APIStatus(nil); errors.As(err, &answer) {
			err = answered(answer, fmt.Sprintf("the Secret cannot be read (%s): it takes a Role for that one Secret, as node-healer-stage-secret in docs/restage.md", answer.Status().Reason))
		}
		in.Version += " unreadable"
		return nil, in, fmt.Errorf("nodeStageSecretRef of PersistentVolume %s: %w", pv.Name, err)
	}
	in.Version += " " + contentOf(secret.UID, secret.Data)
	if at := written(secret); at.After(in.Written) {
		in.Written = at
	}
	secrets = healer.Secrets{}
	for key, value := range secret.Data {
		secrets[key] = string(value)
	}
	return secrets, in, nil
}

// contentSeed makes what contentOf returns of no use outside of this process.
var contentSeed = maphash.MakeSeed()

// contentOf returns what differs where an object is another one, or what a driver is told of it. Its
// resourceVersion would not do: each annotation changes that, and each change is a call of the driver.
func contentOf(uid types.UID, of any) string {
	raw, _ := json.Marshal(of) //nolint:errcheck,errchkjson // types of the API can be encoded
	return fmt.Sprintf("%s/%x", uid, maphash.Bytes(contentSeed, raw))
}

// written returns when anybody last wrote what a driver is told of an object: the data of a Secret, or the mount
// options of a PersistentVolume, whose source cannot be changed.
func written(o metav1.Object) time.Time {
	at := o.GetCreationTimestamp().Time
	for _, f := range o.GetManagedFields() {
		fields := ""
		if f.FieldsV1 != nil {
			fields = f.FieldsV1.GetRawString()
		}
		content := strings.Contains(fields, `"f:mountOptions"`) || strings.Contains(fields, `"f:data"`)
		if content && f.Subresource == "" && f.Time != nil && f.Time.After(at) {
			at = f.Time.Time
		}
	}
	return at
}
