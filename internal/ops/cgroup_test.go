package ops

import (
	"strings"
	"testing"
)

const (
	podUID = "0d6a1c2e-1111-4222-8333-9444aaaa5555"
	// podUnit is podUID as systemd's names have it, and podSlice the cgroup of that pod.
	podUnit   = "0d6a1c2e_1111_4222_8333_9444aaaa5555"
	podSlice  = "0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod" + podUnit + ".slice/"
	longerUID = podUID + "6"
	// ctrID is the id of a container.
	ctrID = "6f1d0c3b5a7e9f2d4c6b8a0e1f3d5c7b9a2e4f6d8c0b1a3e5f7d9c2b4a6e8f0d"
)

var cgroupFiles = map[string]struct{ file, pod, container string }{
	"containerd, systemd": {file: podSlice + "cri-containerd-" + ctrID + ".scope\n", pod: podUID, container: ctrID},
	"CRI-O, systemd":      {file: podSlice + "crio-" + ctrID + ".scope\n", pod: podUID, container: ctrID},
	"docker, systemd":     {file: podSlice + "docker-" + ctrID + ".scope\n", pod: podUID, container: ctrID},
	"guaranteed, systemd": {
		file:      "0::/kubepods.slice/kubepods-pod" + podUnit + ".slice/crio-" + ctrID + ".scope\n",
		pod:       podUID,
		container: ctrID,
	},
	"systemd, cgroup root": {
		file:      "0::/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-besteffort.slice/kubelet-kubepods-besteffort-pod" + podUnit + ".slice/cri-containerd-" + ctrID + ".scope\n",
		pod:       podUID,
		container: ctrID,
	},
	"cgroupfs": {
		file:      "0::/kubepods/besteffort/pod" + podUID + "/" + ctrID + "\n",
		pod:       podUID,
		container: ctrID,
	},
	"cgroupfs, guaranteed": {file: "0::/kubepods/pod" + podUID + "/" + ctrID + "\n", pod: podUID, container: ctrID},
	"CRI-O, cgroupfs":      {file: "0::/kubepods/pod" + podUID + "/crio-" + ctrID + "\n", pod: podUID, container: ctrID},
	"v1": {
		file:      "3:cpu:/\n2:memory:/kubepods/pod" + podUID + "/" + ctrID + "\n0::/\n",
		pod:       podUID,
		container: ctrID,
	},
	"hybrid": {
		file:      "1:name=systemd:/kubepods/pod" + podUID + "/" + ctrID + "\n0::/\n",
		pod:       podUID,
		container: ctrID,
	},
	"no newline at the end": {file: "0::/kubepods/burstable/pod" + podUID + "/" + ctrID, pod: podUID, container: ctrID},
	"static pod": {
		file:      "0::/kubepods/burstable/pod3f2b8c0e5d7a4b1c9e8f7a6b5c4d3e2f/" + ctrID + "\n",
		pod:       "3f2b8c0e5d7a4b1c9e8f7a6b5c4d3e2f",
		container: ctrID,
	},
	"deeper, made inside": {
		file:      podSlice + "cri-containerd-" + ctrID + ".scope/kubepods/pod1/" + strings.Repeat("b", 64) + "\n",
		pod:       podUID,
		container: ctrID,
	},
	"CRI-O's monitor":        {file: podSlice + "crio-conmon-" + ctrID + ".scope\n", pod: podUID},
	"the pod itself":         {file: podSlice + "\n", pod: podUID},
	"not in a container":     {file: "0::/kubepods/pod" + podUID + "\n", pod: podUID},
	"a directory of another": {file: "0::/kubepods/pod" + podUID + "/my things\n", pod: podUID},
	"named like a pod":       {file: "0::/kubepods/pod" + podUID + "/" + podUID + "\n", pod: podUID},
	"too long":               {file: "0::/kubepods/pod" + podUID + "/" + ctrID + "0\n", pod: podUID},
	"Kata":                   {file: "0::/kubepods/pod" + podUID + "/kata_" + ctrID + "\n", pod: podUID},
	"a longer uid":           {file: "0::/kubepods/pod" + longerUID + "/" + ctrID + "\n", pod: longerUID, container: ctrID},
	"a longer uid, systemd":  {file: "0::/kubepods.slice/kubepods-burstable-pod" + podUnit + "6.slice/c1\n", pod: longerUID},
	"the end of a uid":       {file: "0::/kubepods/pod9-" + podUID + "/c1\n", pod: "9-" + podUID},

	"containerd without systemd": {
		file:      "0::/system.slice/containerd.service/kubepods-besteffort-pod" + podUnit + ".slice:cri-containerd:" + ctrID + "\n",
		pod:       podUID,
		container: ctrID,
	},
	"from a cgroup namespace": {
		file:      "0::/../../kubepods-besteffort-pod" + podUnit + ".slice/cri-containerd-" + ctrID + ".scope\n",
		pod:       podUID,
		container: ctrID,
	},
	"made by a container": {
		file: "0::/kubepods/pod11111111-2222-3333-4444-555555555555/c1/kubepods/pod" + podUID + "/" + ctrID + "\n",
		pod:  "11111111-2222-3333-4444-555555555555",
	},
	"outside kubelet's":          {file: "0::/user.slice/pod" + podUID + "/c1\n"},
	"a container outside":        {file: "0::/system.slice/docker-" + ctrID + ".scope\n"},
	"a service named like a pod": {file: "0::/system.slice/x-pod" + podUnit + ".slice\n"},
	"a v1 controller's name":     {file: "3:name=pod" + podUID + ":/user.slice\n"},
	"no pod":                     {file: "0::/system.slice/containerd.service\n"},
	"junk":                       {file: "pod" + podUID + "\n"},
	"nothing":                    {},
}

func TestWorkloadIn(t *testing.T) {
	for name, tc := range cgroupFiles {
		if got := WorkloadIn(tc.file); got.PodUID != tc.pod || got.ContainerID != tc.container {
			t.Errorf("%s: %+v", name, got)
		}
	}
}

// All processes of a container have one directory, wherever they moved below it.
func TestDirectoryOfAContainer(t *testing.T) {
	for name, tc := range map[string]struct{ file, want string }{
		"a container":          {"0::/kubepods/pod" + podUID + "/c1\n", "kubepods/pod" + podUID + "/c1"},
		"deeper":               {"0::/kubepods/pod" + podUID + "/c1/a/b\n", "kubepods/pod" + podUID + "/c1"},
		"the pod itself":       {"0::/kubepods/pod" + podUID + "\n", "kubepods/pod" + podUID},
		"hybrid":               {"2:memory:/kubepods/pod" + podUID + "/c1/a\n1:name=systemd:/init.scope\n0::/\n", "kubepods/pod" + podUID + "/c1"},
		"outside of pods":      {"0::/system.slice/a.service\n", "system.slice/a.service"},
		"outside of pods, old": {"2:memory:/\n1:name=systemd:/system.slice/a.service\n0::/\n", "system.slice/a.service"},
	} {
		if got := WorkloadIn(tc.file).Dir; got != tc.want {
			t.Errorf("%s: %q", name, got)
		}
	}
}
