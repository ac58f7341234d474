package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/csi-addons/node-healer/test/harness/cluster"
)

const (
	nodeName = "node-1"
	// nodeIP is an address for documentation (RFC 5737): it belongs to no one else.
	nodeIP = "192.0.2.1"
	// tmpDir is for temporary files: they go when the node does.
	tmpDir = "/run/tmp"
)

// setUpNode makes a node out of fresh namespaces: mounts, network, and the kernel's
// settings as kubelet wants to see them.
func setUpNode() error {
	// First away from the machine, then as systemd leaves it: kubelet's mounts
	// and the pods' propagate within the node.
	for _, propagation := range []uintptr{unix.MS_PRIVATE, unix.MS_SHARED} {
		if err := unix.Mount("", "/", "", unix.MS_REC|propagation, ""); err != nil {
			return fmt.Errorf("set the propagation of /: %w", err)
		}
	}
	for _, step := range []func() error{ownProc, ownDirectories, ownFusectl, ownSettings, ownAddresses} {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

func ownProc() error { return mount("proc", "/proc", "proc", "") }

// ownDirectories returns the node fresh directories where kubelet, containerd and
// the manifest have theirs. The machine's /var stays to be seen beneath, and
// nothing is written to it.
func ownDirectories() error {
	if err := mount("run", "/run", "tmpfs", "mode=0755"); err != nil {
		return err
	}
	if err := makeDirs("/run/var/upper", "/run/var/work", tmpDir); err != nil {
		return err
	}
	if err := mount("var", "/var", "overlay", "lowerdir=/var,upperdir=/run/var/upper,workdir=/run/var/work"); err != nil {
		return err
	}
	fresh := []string{"/var/log", "/var/lib/kubelet", "/var/lib/containerd", "/var/lib/cni", "/var/lib/node-healer"}
	for _, dir := range fresh {
		if err := makeDirs(dir); err != nil {
			return err
		}
		if err := mount(filepath.Base(dir), dir, "tmpfs", "mode=0755"); err != nil {
			return err
		}
	}
	return nil
}

// ownFusectl has the FUSE connections in sysfs, as systemd does.
func ownFusectl() error {
	const at = "/sys/fs/fuse/connections"
	var of unix.Statfs_t
	if err := unix.Statfs(at, &of); err != nil {
		return fmt.Errorf("look for FUSE: %w", err)
	}
	if of.Type == fusectlMagic {
		return nil
	}
	return mount("fusectl", at, "fusectl", "")
}

// fusectlMagic is FUSE_CTL_SUPER_MAGIC of linux/fs/fuse/control.c.
const fusectlMagic = 0x65735543

// ownSettings shows kubelet the settings of the kernel that it wants, and would
// make: they are the machine's.
func ownSettings() error {
	for name, value := range map[string]string{
		"vm/overcommit_memory": "1", "vm/panic_on_oom": "0", "kernel/panic": "10", "kernel/panic_on_oops": "1",
		"kernel/keys/root_maxkeys": "1000000", "kernel/keys/root_maxbytes": "25000000",
	} {
		shown := filepath.Join(tmpDir, strings.ReplaceAll(name, "/", "."))
		if err := os.WriteFile(shown, []byte(value+"\n"), 0o600); err != nil {
			return err
		}
		if err := unix.Mount(shown, "/proc/sys/"+name, "", unix.MS_BIND, ""); err != nil {
			return fmt.Errorf("show %s: %w", name, err)
		}
	}
	return nil
}

// ownAddresses returns the node its address, and that at which pods look for the
// API. Pods reach both over their own cables (see cniConfig).
func ownAddresses() error {
	for _, args := range [][]string{
		{"link", "set", "lo", "up"},
		{"address", "add", nodeIP + "/32", "dev", "lo"},
		{"address", "add", cluster.ServiceIP + "/32", "dev", "lo"},
	} {
		if out, err := exec.Command("ip", args...).CombinedOutput(); err != nil {
			return fmt.Errorf("ip %v: %w\n%s", args, err, out)
		}
	}
	return nil
}

func mount(source, at, kind, options string) error {
	if err := unix.Mount(source, at, kind, 0, options); err != nil {
		return fmt.Errorf("mount %s on %s: %w", kind, at, err)
	}
	return nil
}

func makeDirs(dirs ...string) error {
	for _, dir := range dirs {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
	}
	return nil
}
