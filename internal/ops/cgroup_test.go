package ops

import (
	"strings"
	"testing"
)

const podUID = "0d6a1c2e-1111-4222-8333-9444aaaa5555"

func TestWorkloadIn(t *testing.T) {
	const id = "6f1d0c3b5a7e9f2d4c6b8a0e1f3d5c7b9a2e4f6d8c0b1a3e5f7d9c2b4a6e8f0d"
	under := strings.ReplaceAll(podUID, "-", "_")
	slice := "0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod" + under + ".slice/"
	longer := podUID + "6"
	for name, tc := range map[string]struct{ file, pod, container string }{
		"containerd, systemd": {file: slice + "cri-containerd-" + id + ".scope\n", pod: podUID, container: id},
		"CRI-O, systemd":      {file: slice + "crio-" + id + ".scope\n", pod: podUID, container: id},
		"docker, systemd":     {file: slice + "docker-" + id + ".scope\n", pod: podUID, container: id},
		"guaranteed, systemd": {
			file:      "0::/kubepods.slice/kubepods-pod" + under + ".slice/crio-" + id + ".scope\n",
			pod:       podUID,
			container: id,
		},
		"systemd, cgroup root": {
			file:      "0::/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-besteffort.slice/kubelet-kubepods-besteffort-pod" + under + ".slice/cri-containerd-" + id + ".scope\n",
			pod:       podUID,
			container: id,
		},
		"cgroupfs":              {file: "0::/kubepods/besteffort/pod" + podUID + "/" + id + "\n", pod: podUID, container: id},
		"cgroupfs, guaranteed":  {file: "0::/kubepods/pod" + podUID + "/" + id + "\n", pod: podUID, container: id},
		"CRI-O, cgroupfs":       {file: "0::/kubepods/pod" + podUID + "/crio-" + id + "\n", pod: podUID, container: id},
		"v1":                    {file: "3:cpu:/\n2:memory:/kubepods/pod" + podUID + "/" + id + "\n0::/\n", pod: podUID, container: id},
		"hybrid":                {file: "1:name=systemd:/kubepods/pod" + podUID + "/" + id + "\n0::/\n", pod: podUID, container: id},
		"no newline at the end": {file: "0::/kubepods/burstable/pod" + podUID + "/" + id, pod: podUID, container: id},
		"static pod": {
			file:      "0::/kubepods/burstable/pod3f2b8c0e5d7a4b1c9e8f7a6b5c4d3e2f/" + id + "\n",
			pod:       "3f2b8c0e5d7a4b1c9e8f7a6b5c4d3e2f",
			container: id,
		},
		"deeper, made inside": {
			file:      slice + "cri-containerd-" + id + ".scope/kubepods/pod1/" + strings.Repeat("b", 64) + "\n",
			pod:       podUID,
			container: id,
		},
		"CRI-O's monitor":        {file: slice + "crio-conmon-" + id + ".scope\n", pod: podUID},
		"the pod itself":         {file: slice + "\n", pod: podUID},
		"not in a container":     {file: "0::/kubepods/pod" + podUID + "\n", pod: podUID},
		"a directory of another": {file: "0::/kubepods/pod" + podUID + "/my things\n", pod: podUID},
		"named like a pod":       {file: "0::/kubepods/pod" + podUID + "/" + podUID + "\n", pod: podUID},
		"too long":               {file: "0::/kubepods/pod" + podUID + "/" + id + "0\n", pod: podUID},
		"Kata":                   {file: "0::/kubepods/pod" + podUID + "/kata_" + id + "\n", pod: podUID},
		"a longer uid":           {file: "0::/kubepods/pod" + longer + "/" + id + "\n", pod: longer, container: id},
		"a longer uid, systemd":  {file: "0::/kubepods.slice/kubepods-burstable-pod" + under + "6.slice/c1\n", pod: longer},
		"the end of a uid":       {file: "0::/kubepods/pod9-" + podUID + "/c1\n", pod: "9-" + podUID},

		"containerd without systemd": {
			file:      "0::/system.slice/containerd.service/kubepods-besteffort-pod" + under + ".slice:cri-containerd:" + id + "\n",
			pod:       podUID,
			container: id,
		},
		"from a cgroup namespace": {
			file:      "0::/../../kubepods-besteffort-pod" + under + ".slice/cri-containerd-" + id + ".scope\n",
			pod:       podUID,
			container: id,
		},
		"made by a container": {
			file: "0::/kubepods/pod11111111-2222-3333-4444-555555555555/c1/kubepods/pod" + podUID + "/" + id + "\n",
			pod:  "11111111-2222-3333-4444-555555555555",
		},
		"outside kubelet's":          {file: "0::/user.slice/pod" + podUID + "/c1\n"},
		"a container outside":        {file: "0::/system.slice/docker-" + id + ".scope\n"},
		"a service named like a pod": {file: "0::/system.slice/x-pod" + under + ".slice\n"},
		"a v1 controller's name":     {file: "3:name=pod" + podUID + ":/user.slice\n"},
		"no pod":                     {file: "0::/system.slice/containerd.service\n"},
		"junk":                       {file: "pod" + podUID + "\n"},
		"nothing":                    {},
	} {
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
