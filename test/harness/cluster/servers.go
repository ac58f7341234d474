package cluster

import (
	"fmt"
	"os"
	"path/filepath"
)

// ServiceIP is the address of the service `kubernetes`, at which pods look for
// the API. Who wants it to be answered there forwards it: there is no kube-proxy.
const ServiceIP = "10.96.0.1"

// startEtcd starts etcd without waiting: the API does that by itself.
func (c *Cluster) startEtcd() (*process, error) {
	clients := fmt.Sprintf("http://127.0.0.1:%d", c.etcdPort)
	peers := fmt.Sprintf("http://127.0.0.1:%d", c.etcdPort+1)
	return c.run("etcd",
		"--data-dir="+filepath.Join(c.dir, "etcd"),
		"--listen-client-urls="+clients, "--advertise-client-urls="+clients,
		"--listen-peer-urls="+peers, "--initial-advertise-peer-urls="+peers,
		"--initial-cluster=default="+peers,
		// This data is not needed after a crash of the machine.
		"--unsafe-no-fsync",
		"--log-level=warn",
	)
}

// startAPI starts kube-apiserver with what a cluster made by kubeadm has, as far
// as a client can tell.
func (c *Cluster) startAPI() (*process, error) {
	args := []string{
		"--bind-address=127.0.0.1", "--advertise-address=127.0.0.1",
		fmt.Sprintf("--secure-port=%d", c.port),
		fmt.Sprintf("--etcd-servers=http://127.0.0.1:%d", c.etcdPort),
		"--cert-dir=" + c.dir,
		"--tls-cert-file=" + c.file(serverCert), "--tls-private-key-file=" + c.file(serverKey),
		"--client-ca-file=" + c.file(caCert),
		"--authorization-mode=Node,RBAC",
		"--service-account-issuer=https://kubernetes.default.svc.cluster.local",
		"--service-account-key-file=" + c.file(signerKey), "--service-account-signing-key-file=" + c.file(signerKey),
		"--service-cluster-ip-range=10.96.0.0/16",
		"--allow-privileged=true",
		// A loopback address is no endpoint of the service `kubernetes`.
		"--endpoint-reconciler-type=none",
	}
	if !c.whole {
		// They wait for controllers: the first for each namespace's default
		// account, the third for what a quota counts; the second taints every new
		// node until its kubelet has been heard of.
		args = append(args, "--disable-admission-plugins=ServiceAccount,TaintNodesByCondition,ResourceQuota")
	}
	if c.whole && os.Getenv("TEST_KUBERNETES") == "" {
		args = append(args, "--feature-gates=CSIVolumeHealth=true") // what kubelet tells with it
	}
	return c.run("kube-apiserver", args...)
}

// file is the path of one of the cluster's own files.
func (c *Cluster) file(name string) string { return filepath.Join(c.dir, name) }
