package kube

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// disk is a volume that is attached to this node.
type disk struct {
	*scene
	api      *clusterAPI
	node     *corev1.Node
	attached *storagev1.VolumeAttachment
}

func newDisk(api *clusterAPI) *disk {
	d := &disk{scene: newScene(), api: api, node: aNode()}
	d.attached = anAttachment(d.pv, nodeName)
	d.play(api)
	api.put(d.attached)
	return d
}

func (d *disk) access(mode corev1.PersistentVolumeAccessMode) {
	d.pv.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{mode}
	d.api.put(d.pv)
}

// driver says whether the volume's driver attaches volumes.
func (d *disk) driver(attaches bool) {
	d.api.put(&storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: driverName}, Spec: storagev1.CSIDriverSpec{AttachRequired: &attaches}})
}

func (d *disk) settings(key, value string) {
	d.api.put(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "healer", Name: "settings"}, Data: map[string]string{key: value}})
}

// outOfService is what a person does before the volumes go to other nodes.
func (d *disk) outOfService() {
	d.node.Spec.Taints = []corev1.Taint{{Key: corev1.TaintNodeOutOfService, Effect: corev1.TaintEffectNoExecute}}
	d.api.put(d.node)
}

// twin is another volume with the same handle.
func (d *disk) twin(driver string) *corev1.PersistentVolume {
	pv, _ := aVolume("pv-2")
	pv.Spec.CSI.Driver = driver
	d.api.put(pv)
	return pv
}

// inline attaches a pod's inline volume, that was migrated to CSI, to a node.
func (d *disk) inline(driver, node string) {
	a := anAttachment(d.pv, node)
	a.Spec.Source = storagev1.VolumeAttachmentSource{InlineVolumeSpec: &corev1.PersistentVolumeSpec{}}
	a.Spec.Source.InlineVolumeSpec.CSI = &corev1.CSIPersistentVolumeSource{Driver: driver, VolumeHandle: handle}
	d.api.put(a)
}

func (d *disk) fails(err error, verb string, resources ...string) {
	d.api.set(func(a *clusterAPI) {
		a.fault = func(asked, resource string) error {
			if asked == verb && strings.Contains(strings.Join(resources, " ")+" ", resource+" ") {
				return err
			}
			return nil
		}
	})
}

// TestWriteToADevice has the same answer whether the informer heard of the change
// or only the API knows of it, but where it says otherwise.
func TestWriteToADevice(t *testing.T) {
	forbidden := apierrors.NewForbidden(schema.GroupResource{Resource: "things"}, "", errors.New("no rule"))
	for name, tc := range map[string]struct {
		change func(*disk)
		want   string // why not; empty: it may
		// heard is true for what only an informer tells.
		heard bool
	}{
		"attached":           {change: func(*disk) {}},
		"being detached":     {change: func(d *disk) { terminating(d.attached); d.api.put(d.attached) }, want: "is being deleted"},
		"detached":           {change: func(d *disk) { d.api.remove(d.attached) }, want: "no VolumeAttachment"},
		"not yet attached":   {change: func(d *disk) { d.attached.Status.Attached = false; d.api.put(d.attached) }, want: "is not attached"},
		"attached anew":      {change: func(d *disk) { d.api.remove(d.attached); d.attached.UID = "another"; d.api.put(d.attached) }},
		"by another driver":  {change: func(d *disk) { d.attached.Spec.Attacher = "x"; d.api.put(d.attached) }, want: "no VolumeAttachment"},
		"out of service":     {change: func(d *disk) { d.outOfService() }, want: corev1.TaintNodeOutOfService},
		"another taint":      {change: func(d *disk) { d.node.Spec.Taints = []corev1.Taint{{Key: "x"}}; d.api.put(d.node) }},
		"the node is gone":   {change: func(d *disk) { d.api.remove(d.node) }, want: "not found"},
		"the volume is gone": {change: func(d *disk) { d.api.remove(d.pv) }, want: "0 PersistentVolumes", heard: true},
		"with another handle": {change: func(d *disk) {
			d.pv.Spec.CSI.VolumeHandle = "x"
			d.api.put(d.pv)
		}, want: "0 PersistentVolumes", heard: true},

		"another node too": {change: func(d *disk) { d.api.put(anAttachment(d.pv, "node-2")) }, want: "node node-2 has"},
		"another node too, for one pod": {change: func(d *disk) {
			d.access(corev1.ReadWriteOncePod)
			d.api.put(anAttachment(d.pv, "node-2"))
		}, want: "node node-2 has"},
		"another node too, which reads": {change: func(d *disk) {
			d.access(corev1.ReadOnlyMany)
			d.api.put(anAttachment(d.pv, "node-2"))
		}, want: "node node-2 has", heard: true},
		"another node too, for many": {change: func(d *disk) {
			d.access(corev1.ReadWriteMany)
			d.api.put(anAttachment(d.pv, "node-2"))
		}, heard: true},
		"another node is yet to have it": {change: func(d *disk) {
			a := anAttachment(d.pv, "node-2")
			a.Status.Attached = false
			d.api.put(a)
		}, want: "node node-2 has"},
		"its twin at another node": {change: func(d *disk) { d.api.put(anAttachment(d.twin(driverName), "node-2")) }, want: "node node-2 has", heard: true},
		"its twin here too":        {change: func(d *disk) { d.api.put(anAttachment(d.twin(driverName), nodeName)) }},
		"its twin of another driver at another node": {change: func(d *disk) {
			d.api.put(anAttachment(d.twin("x"), "node-2"))
		}},
		"its twin, and no directory that tells them apart": {change: func(d *disk) {
			d.twin(driverName)
			d.name.directory = ""
		}, want: "2 PersistentVolumes", heard: true},
		"no directory":                              {change: func(d *disk) { d.name.directory = "" }},
		"inline at another node":                    {change: func(d *disk) { d.inline(driverName, "node-2") }, want: "node node-2 has"},
		"inline of another driver, at another node": {change: func(d *disk) { d.inline("x", "node-2") }},

		"the driver attaches": {change: func(d *disk) { d.driver(true) }},
		"the driver does not": {change: func(d *disk) { d.driver(false) }, want: "attachRequired: false"},
		"the driver does not, and may": {change: func(d *disk) {
			d.driver(false)
			d.settings(keyWriteWithoutAttachment, "["+driverName+"]")
			d.api.remove(d.attached)
		}, heard: true},
		"the driver does not, and another may": {change: func(d *disk) {
			d.driver(false)
			d.settings(keyWriteWithoutAttachment, "[x]")
		}, want: "attachRequired: false"},
		"the driver does not, and may, at a node out of service": {change: func(d *disk) {
			d.driver(false)
			d.settings(keyWriteWithoutAttachment, "["+driverName+"]")
			d.outOfService()
		}, want: corev1.TaintNodeOutOfService},

		"nobody listens":                       {change: func(d *disk) { d.fails(refused, "get", "nodes") }, want: "connection refused"},
		"nobody answers":                       {change: func(d *disk) { d.fails(errSilent, "get", "nodes") }, want: "deadline"},
		"of its driver there is no answer":     {change: func(d *disk) { d.fails(errSilent, "get", "csidrivers") }, want: "deadline"},
		"of its attachment there is no answer": {change: func(d *disk) { d.fails(errSilent, "list", "volumeattachments") }, want: "deadline"},
		"of its driver nothing may be read":    {change: func(d *disk) { d.fails(forbidden, "get", "csidrivers") }, want: "no rule"},
		"of its attachment nothing may be read": {change: func(d *disk) {
			d.fails(forbidden, "list", "volumeattachments")
		}, want: "no rule"},
	} {
		for lag, lags := range map[string]bool{"": false, ", and the informer lags": true} {
			if lags && tc.heard {
				continue
			}
			t.Run(name+lag, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					api := newClusterAPI()
					d := newDisk(api)
					c, end := following(t, api)
					defer end()
					api.set(func(a *clusterAPI) { a.mute = lags })
					tc.change(d)
					synctest.Wait()
					err := c.mayWrite(t.Context(), c.rules(), d.name)
					if (err == nil) != (tc.want == "") || err != nil && !strings.Contains(err.Error(), tc.want) {
						t.Errorf("got %v, want %q", err, tc.want)
					}
				})
			})
		}
	}
}

// TestWriteWithoutNewsOfOthers is refused at once, however lately there were any.
func TestWriteWithoutNewsOfOthers(t *testing.T) {
	for _, resource := range []string{"persistentvolumes"} {
		t.Run(resource, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				api := newClusterAPI()
				d := newDisk(api)
				c, end := following(t, api)
				defer end()
				time.Sleep(time.Hour)
				d.fails(refused, "watch", resource)
				api.set((*clusterAPI).hangUp)
				time.Sleep(time.Millisecond)
				if err := c.mayWrite(t.Context(), c.rules(), d.name); err == nil || !strings.Contains(err.Error(), "another node") {
					t.Errorf("got %v", err)
				}
				if err := c.current(); err != nil {
					t.Errorf("for places it counts: %v", err)
				}
				d.access(corev1.ReadWriteMany)
				d.fails(nil, "")
				muchLater()
				if err := c.mayWrite(t.Context(), c.rules(), d.name); err != nil {
					t.Errorf("it has come back: %v", err)
				}
			})
		})
	}
}

// TestWriteWhileNobodyAnswers is refused without asking once more.
func TestWriteWhileNobodyAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := newClusterAPI()
		d := newDisk(api)
		c, end := following(t, api)
		defer end()
		api.breaks(errSilent)
		time.Sleep(staleness)
		synctest.Wait()
		before := api.count("get nodes")
		for range 10 {
			expect(t, "then", c.mayWrite(t.Context(), c.rules(), d.name), "deadline")
		}
		if asked := api.count("get nodes") - before; asked != 0 {
			t.Errorf("it asked %d times", asked)
		}
		api.breaks(nil)
		muchLater()
		expect(t, "later", c.mayWrite(t.Context(), c.rules(), d.name), "")
	})
}
