package cluster

import (
	"cmp"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/csi-addons/node-healer/pkg/api/clustersettings"
	"github.com/csi-addons/node-healer/test/harness/kubetest"
)

// disk is a volume that is attached to this node.
type disk struct {
	*scene
	api      *kubetest.API
	node     *corev1.Node
	attached *storagev1.VolumeAttachment
}

func newDisk(api *kubetest.API) *disk {
	d := &disk{scene: newScene(), api: api, node: kubetest.Node()}
	d.attached = kubetest.Attachment(d.pv, kubetest.NodeName)
	d.play(api)
	api.Put(d.attached)
	return d
}

func (d *disk) access(mode corev1.PersistentVolumeAccessMode) {
	d.pv.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{mode}
	d.api.Put(d.pv)
}

// driver says whether the volume's driver attaches volumes.
func (d *disk) driver(attaches bool) {
	d.api.Put(&storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: kubetest.DriverName}, Spec: storagev1.CSIDriverSpec{AttachRequired: &attaches}})
}

func (d *disk) settings(key, value string) {
	d.api.Put(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "healer", Name: "settings"}, Data: map[string]string{key: value}})
}

// outOfService taints the node, as a person does before its volumes move to others.
func (d *disk) outOfService() {
	d.node.Spec.Taints = []corev1.Taint{{Key: corev1.TaintNodeOutOfService, Effect: corev1.TaintEffectNoExecute}}
	d.api.Put(d.node)
}

// sameHandle adds another volume with the same handle.
func (d *disk) sameHandle(driver string) *corev1.PersistentVolume {
	pv, _ := kubetest.Volume("pv-2")
	pv.Spec.CSI.Driver = driver
	d.api.Put(pv)
	return pv
}

// inline attaches a pod's inline volume, that was migrated to CSI, to a node.
func (d *disk) inline(driver, node string) {
	a := kubetest.Attachment(d.pv, node)
	a.Spec.Source = storagev1.VolumeAttachmentSource{InlineVolumeSpec: &corev1.PersistentVolumeSpec{}}
	a.Spec.Source.InlineVolumeSpec.CSI = &corev1.CSIPersistentVolumeSource{Driver: driver, VolumeHandle: kubetest.Handle}
	d.api.Put(a)
}

// TestWriteToADevice: the answer is the same whether or not the informers know of the
// change.
// mayWriteNow asks it whether this node may write to the volume's device.
func (c *Cluster) mayWriteNow(t *testing.T, name volumeName) error {
	t.Helper()
	w, err := c.ask(t.Context(), name, "", true)
	if err != nil {
		return err
	}
	unattached, err := w.attached(t.Context())
	return cmp.Or(err, w.mayWrite(t.Context(), unattached))
}

// errNoRule is an answer of RBAC.
var errNoRule = apierrors.NewForbidden(schema.GroupResource{Resource: "things"}, "", errors.New("no rule"))

var deviceWrites = map[string]struct {
	change func(*disk)
	want   string // why not; empty: it may
}{
	"attached": {change: func(*disk) {}},
	"being detached": {
		change: func(d *disk) { kubetest.Terminate(d.attached); d.api.Put(d.attached) },
		want:   "is being deleted",
	},
	"detached": {change: func(d *disk) { d.api.Remove(d.attached) }, want: "no VolumeAttachment"},
	"not yet attached": {
		change: func(d *disk) { d.attached.Status.Attached = false; d.api.Put(d.attached) },
		want:   "is not attached",
	},
	"attached anew": {change: func(d *disk) { d.api.Remove(d.attached); d.attached.UID = "another"; d.api.Put(d.attached) }},
	"by another driver": {
		change: func(d *disk) { d.attached.Spec.Attacher = "x"; d.api.Put(d.attached) },
		want:   "no VolumeAttachment",
	},
	"out of service":     {change: func(d *disk) { d.outOfService() }, want: corev1.TaintNodeOutOfService},
	"another taint":      {change: func(d *disk) { d.node.Spec.Taints = []corev1.Taint{{Key: "x"}}; d.api.Put(d.node) }},
	"the node is gone":   {change: func(d *disk) { d.api.Remove(d.node) }, want: "not found"},
	"the volume is gone": {change: func(d *disk) { d.api.Remove(d.pv) }, want: "0 PersistentVolumes"},
	"with another handle": {
		change: func(d *disk) {
			d.pv.Spec.CSI.VolumeHandle = "x"
			d.api.Put(d.pv)
		},
		want: "0 PersistentVolumes",
	},

	"another node too": {
		change: func(d *disk) { d.api.Put(kubetest.Attachment(d.pv, "node-2")) },
		want:   "node node-2 has",
	},
	"another node too, for one pod": {
		change: func(d *disk) {
			d.access(corev1.ReadWriteOncePod)
			d.api.Put(kubetest.Attachment(d.pv, "node-2"))
		},
		want: "node node-2 has",
	},
	"another node too, which reads": {
		change: func(d *disk) {
			d.access(corev1.ReadOnlyMany)
			d.api.Put(kubetest.Attachment(d.pv, "node-2"))
		},
		want: "node node-2 has",
	},
	"another node too, for many": {change: func(d *disk) {
		d.access(corev1.ReadWriteMany)
		d.api.Put(kubetest.Attachment(d.pv, "node-2"))
	}},
	"another node is yet to have it": {
		change: func(d *disk) {
			a := kubetest.Attachment(d.pv, "node-2")
			a.Status.Attached = false
			d.api.Put(a)
		},
		want: "node node-2 has",
	},
	"a PV with the same handle at another node": {
		change: func(d *disk) { d.api.Put(kubetest.Attachment(d.sameHandle(kubetest.DriverName), "node-2")) },
		want:   "node node-2 has",
	},
	"a PV with the same handle here too": {change: func(d *disk) {
		d.api.Put(kubetest.Attachment(d.sameHandle(kubetest.DriverName), kubetest.NodeName))
	}},
	"a PV with the same handle of another driver at another node": {change: func(d *disk) {
		d.api.Put(kubetest.Attachment(d.sameHandle("x"), "node-2"))
	}},
	"a PV with the same handle, and no directory that tells them apart": {
		change: func(d *disk) {
			d.sameHandle(kubetest.DriverName)
			d.name.directory = ""
		},
		want: "2 PersistentVolumes",
	},
	"no directory": {change: func(d *disk) { d.name.directory = "" }},
	"inline at another node": {
		change: func(d *disk) { d.inline(kubetest.DriverName, "node-2") },
		want:   "node node-2 has",
	},
	"inline of another driver, at another node": {change: func(d *disk) { d.inline("x", "node-2") }},

	"the driver attaches": {change: func(d *disk) { d.driver(true) }},
	"the driver does not": {change: func(d *disk) { d.driver(false) }, want: "attachRequired: false"},
	"the driver does not, and may": {change: func(d *disk) {
		d.driver(false)
		d.settings(clustersettings.WriteWithoutAttachment, "["+kubetest.DriverName+"]")
		d.api.Remove(d.attached)
	}},
	"the driver does not, and another may": {
		change: func(d *disk) {
			d.driver(false)
			d.settings(clustersettings.WriteWithoutAttachment, "[x]")
		},
		want: "attachRequired: false",
	},
	"the driver does not, and may, at a node out of service": {
		change: func(d *disk) {
			d.driver(false)
			d.settings(clustersettings.WriteWithoutAttachment, "["+kubetest.DriverName+"]")
			d.outOfService()
		},
		want: corev1.TaintNodeOutOfService,
	},

	"nobody listens": {
		change: func(d *disk) { d.api.BreakFor(kubetest.ErrRefused, "get", "nodes") },
		want:   "connection refused",
	},
	"of the volumes there is no answer": {
		change: func(d *disk) { d.api.BreakFor(kubetest.ErrNoAnswer, "list", "persistentvolumes") },
		want:   "deadline",
	},
	"nobody answers": {change: func(d *disk) { d.api.BreakFor(kubetest.ErrNoAnswer, "get", "nodes") }, want: "deadline"},
	"of its driver there is no answer": {
		change: func(d *disk) { d.api.BreakFor(kubetest.ErrNoAnswer, "get", "csidrivers") },
		want:   "deadline",
	},
	"of its attachment there is no answer": {
		change: func(d *disk) { d.api.BreakFor(kubetest.ErrNoAnswer, "list", "volumeattachments") },
		want:   "deadline",
	},
	"of its driver nothing may be read": {
		change: func(d *disk) { d.api.BreakFor(errNoRule, "get", "csidrivers") },
		want:   "no rule",
	},
	"of its attachment nothing may be read": {
		change: func(d *disk) {
			d.api.BreakFor(errNoRule, "list", "volumeattachments")
		},
		want: "no rule",
	},
}

func TestWriteToADevice(t *testing.T) {
	for name, tc := range deviceWrites {
		for lag, lags := range map[string]bool{"": false, ", and the informer lags": true} {
			t.Run(name+lag, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					api := kubetest.NewAPI()
					d := newDisk(api)
					c, end := following(t, api)
					defer end()
					api.Set(func(a *kubetest.API) { a.Stalled = lags })
					tc.change(d)
					synctest.Wait()
					err := c.mayWriteNow(t, d.name)
					if (err == nil) != (tc.want == "") || err != nil && !strings.Contains(err.Error(), tc.want) {
						t.Errorf("got %v, want %q", err, tc.want)
					}
				})
			})
		}
	}
}

// TestListsAreOneSnapshot: what changes between two pages of a list is not missed, and
// an incomplete list proves nothing.
func TestListsAreOneSnapshot(t *testing.T) {
	expired := apierrors.NewResourceExpired("the continue token is too old")
	for name, tc := range map[string]struct {
		continued func(d *disk, asked int) error
		want      string
	}{
		"nothing happens":                {func(*disk, int) error { return nil }, ""},
		"the token expires":              {func(*disk, int) error { return expired }, "the continue token is too old"},
		"the API says no":                {func(*disk, int) error { return apierrors.NewBadRequest("no such token") }, "no such token"},
		"the API breaks":                 {func(*disk, int) error { return kubetest.ErrRefused }, "connection refused"},
		"another volume comes meanwhile": {func(d *disk, n int) error { return d.late(n == 1) }, "different resource versions"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				api := kubetest.NewAPI()
				d := newDisk(api)
				for i := range 2 * 500 {
					pv, _ := kubetest.Volume(fmt.Sprintf("pv-of-others-%04d", i))
					pv.Spec.CSI.VolumeHandle = pv.Name
					api.Put(pv)
				}
				c, end := following(t, api)
				defer end()
				asked := 0
				api.Set(func(a *kubetest.API) {
					a.Continued = func() error { asked++; return tc.continued(d, asked) }
				})
				expect(t, "then", c.mayWriteNow(t, d.name), tc.want)
			})
		})
	}
}

// late attaches a volume with the same handle to another node, with a name that the
// list has passed by then.
func (d *disk) late(is bool) error {
	if is {
		other := d.pv.DeepCopy()
		other.Name = "a-other"
		attached := kubetest.Attachment(other, "node-2")
		d.api.Put(other, attached)
	}
	return nil
}

// TestNoWriteDuringAnOutage: writes are refused, for a while without another request, as
// a volume may have many mount points.
func TestNoWriteDuringAnOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := kubetest.NewAPI()
		d := newDisk(api)
		c, end := following(t, api)
		defer end()
		expect(t, "at first", c.mayWriteNow(t, d.name), "")
		api.Break(kubetest.ErrNoAnswer)
		expect(t, "the first", c.mayWriteNow(t, d.name), "deadline")
		before := api.Count("get nodes")
		for range 10 {
			expect(t, "then", c.mayWriteNow(t, d.name), "deadline")
		}
		if asked := api.Count("get nodes") - before; asked != 0 {
			t.Errorf("it asked %d times", asked)
		}
		api.Break(nil)
		time.Sleep(3 * time.Second)
		expect(t, "later", c.mayWriteNow(t, d.name), "")
	})
}
