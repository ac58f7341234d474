// Package e2e runs the healer for real, once: etcd, the API with its controllers
// and scheduler, kubelet, containerd, the DaemonSets' own manifests, and a CSI
// driver whose FUSE daemon is killed under a running pod.
//
// The node is a machine within the machine: PID, mount and network namespaces of
// its own (see Main), in which the paths, addresses and "process 1" of the
// manifest mean what they mean on any node. Nothing of it is seen outside but its
// cgroups, and all of it ends with its process 1.
//
// It needs root, what `make deps` installs, and what `make build kubernetes`
// builds; nothing is fetched when it runs. `make e2e` does all of it.
//
// It is for what only a whole node shows. What can be shown without a kubelet
// belongs into test/integration.
package e2e
