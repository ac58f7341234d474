package layout

import (
	"strings"
	"testing"
)

func TestLayout(t *testing.T) {
	k := Kubelet{Root: "/var/lib/kubelet"}
	const csi = "/var/lib/kubelet/plugins/kubernetes.io/csi/"
	pod := func(pv string) Path {
		return Path{Kind: Pod, PodUID: "uid", PV: pv, VolData: "/var/lib/kubelet/pods/uid/volumes/kubernetes.io~csi/" + pv + "/vol_data.json"}
	}
	block := func(kind Kind, uid, pv string) Path {
		return Path{Kind: kind, PodUID: uid, PV: pv, VolData: csi + "volumeDevices/" + pv + "/data/vol_data.json"}
	}
	sum := strings.Repeat("ab", 32)
	staged := Path{
		Kind:    Staging,
		Base:    csi + "rbd.csi.ceph.com/" + sum + "/globalmount",
		VolData: csi + "rbd.csi.ceph.com/" + sum + "/vol_data.json",
	}
	stagedBlock := block(BlockStaging, "", "pvc-1")
	stagedBlock.Base = csi + "volumeDevices/staging/pvc-1"
	for p, want := range map[string]Path{
		"/var/lib/kubelet/pods/uid/volumes/kubernetes.io~csi/pvc-1/mount":        pod("pvc-1"),
		"/var/lib/kubelet/pods/uid/volumes/kubernetes.io~csi/a b^c~d/mount":      pod("a b^c~d"),
		"/var/lib/kubelet/pods/uid/volumes/kubernetes.io~csi/mount/mount":        pod("mount"),
		"/var/lib/kubelet/pods/uid/volumeDevices/kubernetes.io~csi/pvc-1":        block(PodBlock, "uid", "pvc-1"),
		csi + "volumeDevices/publish/pvc-1/uid":                                  block(Block, "uid", "pvc-1"),
		csi + "volumeDevices/publish/a b^c/uid":                                  block(Block, "uid", "a b^c"),
		csi + "volumeDevices/staging/pvc-1":                                      stagedBlock,
		csi + "volumeDevices/staging/pvc-1/image-0":                              stagedBlock,
		csi + "rbd.csi.ceph.com/" + sum + "/globalmount":                         staged,
		csi + "rbd.csi.ceph.com/" + sum + "/globalmount/0001-0009-rook^x/deeper": staged,
		csi + "pv/pvc-1/globalmount":                                             {Kind: Staging, Base: csi + "pv/pvc-1/globalmount", VolData: csi + "pv/pvc-1/vol_data.json"}, // before Kubernetes 1.24
		csi + "d/" + sum:                                                         {},
		csi + "d/" + sum + "/globalmounts":                                       {},
		csi + "volumeDevices/publish/pvc-1":                                      {},
		csi + "volumeDevices/publish/pvc-1/uid/dev":                              {},
		csi + "volumeDevices/pvc-1/data":                                         {},
		"/var/lib/kubelet/pods/uid/volumes/kubernetes.io~csi/pvc-1":              {},
		"/var/lib/kubelet/pods/uid/volumes/kubernetes.io~csi/pvc-1/mount/data":   {},
		"/var/lib/kubelet/pods/uid/volumes/kubernetes.io~nfs/pvc-1/mount":        {},
		"/var/lib/kubelet/pods/uid/volume-subpaths/pvc-1/c/0":                    {Kind: Subpath, PodUID: "uid", PV: "pvc-1"},
		"/var/lib/kubelet/pods/uid/volume-subpaths/pvc-1/c/0/x":                  {},
		"/var/lib/kubelet/pods/uid/volume-subpaths/pvc-1/c":                      {},
		"/var/lib/kubelet/pods/uid/volume-subpath/pvc-1/c/0":                     {},
		"/var/lib/kubelet": {},
		"/var/lib/kubelet2/pods/uid/volumes/kubernetes.io~csi/pvc-1/mount": {},
		"/pods/uid/volumes/kubernetes.io~csi/pvc-1/mount":                  {},
		"": {},
	} {
		if got := k.Layout(p); got != want {
			t.Errorf("%s\ngot  %+v\nwant %+v", p, got, want)
		}
	}
}

// The sums are those of sha256sum(1), as kubelet's makeDeviceMountPath makes them.
func TestStaging(t *testing.T) {
	k := Kubelet{Root: "/k"}
	for handle, sum := range map[string]string{
		"vol-1":    "d2e8363faaac7ae76def3b14091d8eb5755f6b92e9531627aeec833a8731cc49",
		"a/b/../c": "f5c9a581ffdc57ee0385a8bc0f97da4dbbf08416ee3308e05563988843c50ca0",
		"rook^x y": "969d59e9a89bb0e63d16b65445e675420c034f7c7fd120cfcf62d170e7630ec5",
	} {
		if got, want := k.Staging("d", handle), "/k/plugins/kubernetes.io/csi/d/"+sum+"/globalmount"; got != want {
			t.Errorf("%q: %s, want %s", handle, got, want)
		}
	}
	for _, handle := range []string{"vol-1", "a/b/../c", "", "rook^x y", strings.Repeat("x", 1024)} {
		p := k.Staging("d", handle)
		if l := k.Layout(p); l.Kind != Staging || l.VolData != strings.TrimSuffix(p, "globalmount")+"vol_data.json" {
			t.Errorf("%.20q: %s is %+v", handle, p, l)
		}
	}
}
