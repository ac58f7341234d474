package host

import (
	"crypto/sha256"
	"encoding/hex"
	"path"
	"strings"
)

// LayoutKind is the kind of one of kubelet's paths for CSI volumes.
type LayoutKind string

// The kinds of a path. Sources: kubelet's pkg/volume/csi (csi_mounter.go,
// csi_block.go) and pkg/volume/util/volumepathhandler.
const (
	LayoutOther LayoutKind = ""
	// LayoutPod: pods/<uid>/volumes/kubernetes.io~csi/<pv>/mount
	LayoutPod LayoutKind = "published filesystem"
	// LayoutSubpath: pods/<uid>/volume-subpaths/<pv>/<container>/<n>, a directory
	// or file of the volume that one container has (kubelet's pkg/volume/util/subpath)
	LayoutSubpath LayoutKind = "subPath of a volume"
	// LayoutPodBlock: pods/<uid>/volumeDevices/kubernetes.io~csi/<pv>, a
	// symbolic link to a LayoutBlock path.
	LayoutPodBlock LayoutKind = "link to a block volume"
	// LayoutBlock: plugins/kubernetes.io/csi/volumeDevices/publish/<pv>/<uid>
	LayoutBlock LayoutKind = "published block device"
	// LayoutStaging: plugins/kubernetes.io/csi/<driver>/<sha256>/globalmount,
	// or a path below it.
	LayoutStaging LayoutKind = "staged filesystem"
	// LayoutBlockStaging: plugins/kubernetes.io/csi/volumeDevices/staging/<pv>
	LayoutBlockStaging LayoutKind = "staged block device"
)

// Layout is what a path itself tells.
type Layout struct {
	Kind   LayoutKind
	PodUID string
	// PV is the directory that kubelet names after the PersistentVolume.
	PV string
	// Base is the staging path that kubelet passes to the driver, which may stage
	// below it; empty for other kinds.
	Base string
	// VolData is where kubelet keeps the vol_data.json for the path; empty when
	// it keeps none.
	VolData string
}

// Kubelet is kubelet's directory layout beneath a root, a path without symbolic
// links.
type Kubelet struct {
	Root string
}

const csiPlugins = "plugins/kubernetes.io/csi"

// Layout parses a path.
func (k Kubelet) Layout(p string) Layout {
	rel, beneath := strings.CutPrefix(p, k.Root)
	if !beneath || rel == "" || rel[0] != '/' {
		return Layout{}
	}
	rel = rel[1:]
	part := strings.SplitN(rel, "/", maxLayoutParts)
	switch {
	case len(part) == 6 && part[0] == "pods" && part[2] == "volumes" && part[3] == "kubernetes.io~csi" && part[5] == "mount":
		return Layout{Kind: LayoutPod, PodUID: part[1], PV: part[4], VolData: path.Dir(p) + "/vol_data.json"}
	case len(part) == 6 && part[0] == "pods" && part[2] == "volume-subpaths":
		return Layout{Kind: LayoutSubpath, PodUID: part[1], PV: part[3]}
	case len(part) == 5 && part[0] == "pods" && part[2] == "volumeDevices" && part[3] == "kubernetes.io~csi":
		return Layout{Kind: LayoutPodBlock, PodUID: part[1], PV: part[4], VolData: k.blockVolData(part[4])}
	}
	rel, beneath = strings.CutPrefix(rel, csiPlugins+"/")
	if !beneath {
		return Layout{}
	}
	part = strings.SplitN(rel, "/", maxLayoutParts)
	switch {
	case len(part) == 4 && part[0] == "volumeDevices" && part[1] == "publish":
		return Layout{Kind: LayoutBlock, PodUID: part[3], PV: part[2], VolData: k.blockVolData(part[2])}
	case len(part) >= 3 && part[0] == "volumeDevices" && part[1] == "staging":
		return Layout{Kind: LayoutBlockStaging, PV: part[2], VolData: k.blockVolData(part[2])}
	case len(part) >= 3 && part[2] == "globalmount":
		dir := k.Root + "/" + csiPlugins + "/" + part[0] + "/" + part[1]
		return Layout{Kind: LayoutStaging, Base: dir + "/globalmount", VolData: dir + "/vol_data.json"}
	}
	return Layout{}
}

// maxLayoutParts is more than any layout has.
const maxLayoutParts = 8

func (k Kubelet) blockVolData(pv string) string {
	return path.Join(k.Root, csiPlugins, "volumeDevices", pv, "data/vol_data.json")
}

// Staging returns the path at which kubelet has a driver stage a volume (CSI
// plugin since Kubernetes 1.24).
func (k Kubelet) Staging(driver, handle string) string {
	sum := sha256.Sum256([]byte(handle))
	return path.Join(k.Root, csiPlugins, driver, hex.EncodeToString(sum[:]), "globalmount")
}
