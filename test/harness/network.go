package harness

import (
	"fmt"
	"os"
	"os/exec"
	"testing"
)

// Network is a network namespace, as a pod has one, with a link to the test's.
type Network struct {
	t           testing.TB
	namespace   string
	host, guest string
}

// NewNetwork makes one.
func NewNetwork(t testing.TB) *Network {
	t.Helper()
	NeedsHost(t, "a network")
	NeedsRoot(t)
	NeedsPrograms(t, "ip", "nsenter", "unshare")
	holder := exec.Command("unshare", "--net", "sleep", "infinity")
	ended := startDaemon(t, holder)
	t.Cleanup(func() { _ = holder.Process.Kill(); <-ended })
	namespace := fmt.Sprintf("/proc/%d/ns/net", holder.Process.Pid)
	Eventually(t, "the network is another one", func() bool {
		its, err := os.Readlink(namespace)
		ours, _ := os.Readlink("/proc/self/ns/net")
		return err == nil && its != ours
	})
	// Addresses for tests of networks (RFC 2544), four for each process.
	first := 4 * (os.Getpid() % (1 << 14))
	address := func(i int) string { return fmt.Sprintf("198.18.%d.%d", (first+i)>>8, (first+i)&0xff) }
	n := &Network{t: t, namespace: namespace, host: address(1), guest: address(2)}
	link := fmt.Sprintf("nh%d", os.Getpid())
	Run(t, "ip", "link", "add", link, "type", "veth", "peer", "name", "eth0", "netns", fmt.Sprint(holder.Process.Pid))
	t.Cleanup(func() { _ = exec.Command("ip", "link", "delete", link).Run() })
	Run(t, "ip", "address", "add", n.host+"/30", "dev", link)
	Run(t, "ip", "link", "set", link, "up")
	for _, args := range [][]string{{"address", "add", n.guest + "/30", "dev", "eth0"}, {"link", "set", "eth0", "up"}} {
		inside := n.Inside(append([]string{"ip"}, args...))
		Run(t, inside[0], inside[1:]...)
	}
	return n
}

// Host is the test's address, as it is seen from inside.
func (n *Network) Host() string { return n.host }

// Inside returns the command that runs another one in the namespace.
func (n *Network) Inside(command []string) []string {
	return append([]string{"nsenter", "--net=" + n.namespace}, command...)
}

// Lose has everything lost that is sent into the namespace.
func (n *Network) Lose() {
	n.t.Helper()
	Run(n.t, "ip", "route", "add", "blackhole", n.guest)
	n.t.Cleanup(n.Restore)
}

// Restore ends that.
func (n *Network) Restore() { _ = exec.Command("ip", "route", "delete", "blackhole", n.guest).Run() }
