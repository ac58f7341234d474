package layout

import (
	"crypto/sha256"
	"encoding/hex"
	"path"
	"strings"
)

// Kind is the kind of one of kubelet's paths for CSI volumes.
type Kind string

// The kinds of a path. Sources: kubelet's pkg/volume/csi (csi_mounter.go,
// csi_block.go) and pkg/volume/util/volumepathhandler.
const (
	Other Kind = ""
	// Pod: pods/<uid>/volumes/kubernetes.io~csi/<pv>/mount
	Pod Kind = "published filesystem"
	// Subpath: pods/<uid>/volume-subpaths/<pv>/<container>/<n>, a directory
	// or file of the volume that one container has (kubelet's pkg/volume/util/subpath)
	Subpath Kind = "subPath of a volume"
	// PodBlock: pods/<uid>/volumeDevices/kubernetes.io~csi/<pv>, a
	// symbolic link to a Block path.
	PodBlock Kind = "link to a block volume"
	// Block: plugins/kubernetes.io/csi/volumeDevices/publish/<pv>/<uid>
	Block Kind = "published block device"
	// Staging: plugins/kubernetes.io/csi/<driver>/<sha256>/globalmount,
	// or a path below it.
	Staging Kind = "staged filesystem"
	// BlockStaging: plugins/kubernetes.io/csi/volumeDevices/staging/<pv>,
	// or a path below it.
	BlockStaging Kind = "staged block device"
)

// Path is what a path itself tells.
type Path struct {
	Kind   Kind
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

// Kubelet is kubelet's directory layout beneath a root. Layout knows paths without symbolic
// links only, so it wants a root without.
type Kubelet struct {
	Root string
}

const (
	// RegistrationSuffix ends the name of the socket with which a CSI driver registers
	// itself, as node-driver-registrar makes it when the driver's pod has started.
	RegistrationSuffix = "-reg.sock"

	csiPlugins = "plugins/kubernetes.io/csi"
	podVolumes = "volumes/kubernetes.io~csi" // in a pod's directory
	subpaths   = "volume-subpaths"           // in a pod's directory
)

// Pods is the directory that has one of each pod.
func (k Kubelet) Pods() string { return path.Join(k.Root, "pods") }

// Target returns where a volume with a filesystem is published for a pod.
func (k Kubelet) Target(pod, pv string) string {
	return path.Join(k.Pods(), pod, podVolumes, pv, "mount")
}

// BlockTarget returns where a raw block volume is published for a pod.
func (k Kubelet) BlockTarget(pod, pv string) string {
	return path.Join(k.Root, csiPlugins, "volumeDevices/publish", pv, pod)
}

// Staging returns the path at which kubelet has a driver stage a volume with a
// filesystem (since Kubernetes 1.24).
func (k Kubelet) Staging(driver, handle string) string {
	sum := sha256.Sum256([]byte(handle))
	return path.Join(k.Root, csiPlugins, driver, hex.EncodeToString(sum[:]), "globalmount")
}

// BlockStaging returns the path at which kubelet has a driver stage a raw block volume.
func (k Kubelet) BlockStaging(pv string) string {
	return path.Join(k.Root, csiPlugins, "volumeDevices/staging", pv)
}

// Socket returns where a driver listens by convention (CSI's deployment in Kubernetes).
func (k Kubelet) Socket(driver string) string {
	return path.Join(k.Root, "plugins", driver, "csi.sock")
}

// Registrations is the directory of the sockets with which drivers register themselves.
func (k Kubelet) Registrations() string { return path.Join(k.Root, "plugins_registry") }

// Registration returns the socket with which a driver registers itself.
func (k Kubelet) Registration(driver string) string {
	return path.Join(k.Registrations(), driver+RegistrationSuffix)
}

// Layout parses a path.
func (k Kubelet) Layout(p string) Path {
	rel, beneath := strings.CutPrefix(p, k.Root)
	if !beneath || rel == "" || rel[0] != '/' {
		return Path{}
	}
	rel = rel[1:]
	part, parts := split(rel)
	switch {
	case parts == 6 && part[0] == "pods" && part[2]+"/"+part[3] == podVolumes && part[5] == "mount":
		return Path{Kind: Pod, PodUID: part[1], PV: part[4], VolData: strings.TrimSuffix(p, "mount") + "vol_data.json"}
	case parts == 6 && part[0] == "pods" && part[2] == subpaths:
		return Path{Kind: Subpath, PodUID: part[1], PV: part[3]}
	case parts == 5 && part[0] == "pods" && part[2] == "volumeDevices" && part[3] == "kubernetes.io~csi":
		return Path{Kind: PodBlock, PodUID: part[1], PV: part[4], VolData: k.blockVolData(part[4])}
	}
	rel, beneath = strings.CutPrefix(rel, csiPlugins+"/")
	if !beneath {
		return Path{}
	}
	part, parts = split(rel)
	switch {
	case parts == 4 && part[0] == "volumeDevices" && part[1] == "publish":
		return Path{Kind: Block, PodUID: part[3], PV: part[2], VolData: k.blockVolData(part[2])}
	case parts >= 3 && part[0] == "volumeDevices" && part[1] == "staging":
		return Path{Kind: BlockStaging, PV: part[2], Base: k.BlockStaging(part[2]), VolData: k.blockVolData(part[2])}
	case parts >= 3 && part[2] == "globalmount":
		dir := p[:len(p)-len(rel)+len(part[0])+1+len(part[1])]
		return Path{Kind: Staging, Base: p[:len(dir)+len("/globalmount")], VolData: dir + "/vol_data.json"}
	}
	return Path{}
}

// split returns the first parts of a path, and how many it has.
func split(rel string) (part [6]string, parts int) {
	for next := range strings.SplitSeq(rel, "/") {
		if parts < len(part) {
			part[parts] = next
		}
		parts++
	}
	return part, parts
}

func (k Kubelet) blockVolData(pv string) string {
	return path.Join(k.Root, csiPlugins, "volumeDevices", pv, "data/vol_data.json")
}
