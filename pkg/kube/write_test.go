package kube

import (
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
func (d *disk) propagatedMount(driver string) *corev1.PersistentVolume {
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

// TestWriteToADevice has the same answer whether the informers heard of the change
// or only the API knows of it.
func TestWriteToADevice(t *testing.T) {
	forbidden := apierrors.NewForbidden(schema.GroupResource{Resource: "things"}, "", errors.New("no rule"))
	for name, tc := range map[string]struct {
		change func(*disk)
		want   string // why not; empty: it may
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
		"the volume is gone": {change: func(d *disk) { d.api.remove(d.pv) }, want: "0 PersistentVolumes"},
		"with another handle": {change: func(d *disk) {
			d.pv.Spec.CSI.VolumeHandle = "x"
			d.api.put(d.pv)
		}, want: "0 PersistentVolumes"},

		"another node too": {change: func(d *disk) { d.api.put(anAttachment(d.pv, "node-2")) }, want: "node node-2 has"},
		"another node too, for one pod": {change: func(d *disk) {
			d.access(corev1.ReadWriteOncePod)
			d.api.put(anAttachment(d.pv, "node-2"))
		}, want: "node node-2 has"},
		"another node too, which reads": {change: func(d *disk) {
			d.access(corev1.ReadOnlyMany)
			d.api.put(anAttachment(d.pv, "node-2"))
		}, want: "node node-2 has"},
		"another node too, for many": {change: func(d *disk) {
			d.access(corev1.ReadWriteMany)
			d.api.put(anAttachment(d.pv, "node-2"))
		}},
		"another node is yet to have it": {change: func(d *disk) {
			a := anAttachment(d.pv, "node-2")
			a.Status.Attached = false
			d.api.put(a)
		}, want: "node node-2 has"},
		"its twin at another node": {change: func(d *disk) { d.api.put(anAttachment(d.propagatedMount(driverName), "node-2")) }, want: "node node-2 has"},
		"its twin here too":        {change: func(d *disk) { d.api.put(anAttachment(d.propagatedMount(driverName), nodeName)) }},
		"its twin of another driver at another node": {change: func(d *disk) {
			d.api.put(anAttachment(d.propagatedMount("x"), "node-2"))
		}},
		"its twin, and no directory that tells them apart": {change: func(d *disk) {
			d.propagatedMount(driverName)
			d.name.directory = ""
		}, want: "2 PersistentVolumes"},
		"no directory":                              {change: func(d *disk) { d.name.directory = "" }},
		"inline at another node":                    {change: func(d *disk) { d.inline(driverName, "node-2") }, want: "node node-2 has"},
		"inline of another driver, at another node": {change: func(d *disk) { d.inline("x", "node-2") }},

		"the driver attaches": {change: func(d *disk) { d.driver(true) }},
		"the driver does not": {change: func(d *disk) { d.driver(false) }, want: "attachRequired: false"},
		"the driver does not, and may": {change: func(d *disk) {
			d.driver(false)
			d.settings(keyWriteWithoutAttachment, "["+driverName+"]")
			d.api.remove(d.attached)
		}},
		"the driver does not, and another may": {change: func(d *disk) {
			d.driver(false)
			d.settings(keyWriteWithoutAttachment, "[x]")
		}, want: "attachRequired: false"},
		"the driver does not, and may, at a node out of service": {change: func(d *disk) {
			d.driver(false)
			d.settings(keyWriteWithoutAttachment, "["+driverName+"]")
			d.outOfService()
		}, want: corev1.TaintNodeOutOfService},

		"nobody listens":                       {change: func(d *disk) { d.api.breaksFor(refused, "get", "nodes") }, want: "connection refused"},
		"of the volumes there is no answer":    {change: func(d *disk) { d.api.breaksFor(errSilent, "list", "persistentvolumes") }, want: "deadline"},
		"nobody answers":                       {change: func(d *disk) { d.api.breaksFor(errSilent, "get", "nodes") }, want: "deadline"},
		"of its driver there is no answer":     {change: func(d *disk) { d.api.breaksFor(errSilent, "get", "csidrivers") }, want: "deadline"},
		"of its attachment there is no answer": {change: func(d *disk) { d.api.breaksFor(errSilent, "list", "volumeattachments") }, want: "deadline"},
		"of its driver nothing may be read":    {change: func(d *disk) { d.api.breaksFor(forbidden, "get", "csidrivers") }, want: "no rule"},
		"of its attachment nothing may be read": {change: func(d *disk) {
			d.api.breaksFor(forbidden, "list", "volumeattachments")
		}, want: "no rule"},
	} {
		for lag, lags := range map[string]bool{"": false, ", and the informer lags": true} {
			t.Run(name+lag, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					api := newClusterAPI()
					d := newDisk(api)
					c, end := following(t, api)
					defer end()
					api.set(func(a *clusterAPI) { a.mute = lags })
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

// TestListsAreOneSnapshot: what changes while a list comes in pages is not missed,
// and a list that never comes to its end proves nothing.
func TestListsAreOneSnapshot(t *testing.T) {
	expired := apierrors.NewResourceExpired("the continue token is too old")
	for name, tc := range map[string]struct {
		continued func(d *disk, asked int) error
		want      string
	}{
		"nothing happens":          {func(*disk, int) error { return nil }, ""},
		"the token expires once":   {func(_ *disk, n int) error { return map[bool]error{true: expired}[n == 1] }, ""},
		"the token always expires": {func(*disk, int) error { return expired }, "no snapshot lasted to the end"},
		"the API says no":          {func(*disk, int) error { return apierrors.NewBadRequest("no such token") }, "no such token"},
		"the API breaks":           {func(*disk, int) error { return refused }, "connection refused"},
		"a twin comes meanwhile":   {func(d *disk, n int) error { return d.late(n == 1) }, "node node-2 has"},
		"something always comes":   {func(d *disk, _ int) error { d.api.version++; return nil }, "no snapshot lasted to the end"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				api := newClusterAPI()
				d := newDisk(api)
				for i := range 2 * listPage {
					pv, _ := aVolume(fmt.Sprintf("pv-of-others-%04d", i))
					pv.Spec.CSI.VolumeHandle = pv.Name
					api.put(pv)
				}
				c, end := following(t, api)
				defer end()
				asked := 0
				api.set(func(a *clusterAPI) {
					a.continued = func() error { asked++; return tc.continued(d, asked) }
				})
				expect(t, "then", c.mayWriteNow(t, d.name), tc.want)
			})
		})
	}
}

// late has a twin of the volume come to another node, with a name that a list has
// passed by then. The API's lock is held.
func (d *disk) late(is bool) error {
	if is {
		d.api.mu.Unlock()
		defer d.api.mu.Lock()
		propagatedMount := d.pv.DeepCopy()
		propagatedMount.Name = "a-twin"
		attached := anAttachment(propagatedMount, "node-2")
		d.api.put(propagatedMount, attached)
	}
	return nil
}

// TestWriteWhileNobodyAnswers is refused, for a while without asking once more: a
// volume may have many mount points.
func TestWriteWhileNobodyAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := newClusterAPI()
		d := newDisk(api)
		c, end := following(t, api)
		defer end()
		expect(t, "at first", c.mayWriteNow(t, d.name), "")
		api.breaks(errSilent)
		expect(t, "the first", c.mayWriteNow(t, d.name), "deadline")
		before := api.count("get nodes")
		for range 10 {
			expect(t, "then", c.mayWriteNow(t, d.name), "deadline")
		}
		if asked := api.count("get nodes") - before; asked != 0 {
			t.Errorf("it asked %d times", asked)
		}
		api.breaks(nil)
		time.Sleep(silentTime)
		expect(t, "later", c.mayWriteNow(t, d.name), "")
	})
}
