package harness

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// NFSServer is the kernel's own NFS server, which listens on the loopback
// interface. There is one in a machine, and so only in a virtual one.
type NFSServer struct {
	t testing.TB
	// Root has the exports, each a directory in it. It is the root that version 4
	// shows to its clients.
	Root string
}

// nfsdControl is where the server is controlled.
const nfsdControl = "/proc/fs/nfsd"

// NewNFSServer starts the server until the end of the test. It exports nothing but
// an empty root.
func (n *Node) NewNFSServer() *NFSServer {
	n.T.Helper()
	t := n.T
	NeedsVM(t, "an NFS server in the kernel")
	NeedsPrograms(t, "rpcbind", "rpc.nfsd", "rpc.mountd", "exportfs")
	for _, module := range []string{"nfsd", "nfs", "nfsv3", "nfsv4"} {
		Run(t, "modprobe", module)
	}
	s := &NFSServer{t: t, Root: filepath.Join(n.Dir, "exports")}
	Mkdir(t, s.Root)
	if _, err := os.Stat(filepath.Join(nfsdControl, "threads")); err != nil {
		Must(t, unix.Mount("nfsd", nfsdControl, "nfsd", 0, ""))
	}
	// What packages make when they are installed. The server keeps its files
	// here for one test.
	state := filepath.Join(n.Dir, "nfs")
	for _, dir := range []string{"sm", "sm.bak", "rpc_pipefs", "v4recovery"} {
		Mkdir(t, filepath.Join(state, dir))
	}
	for _, file := range []string{"etab", "rmtab"} {
		Must(t, os.WriteFile(filepath.Join(state, file), nil, 0o600))
	}
	Mkdir(t, "/var/lib/nfs")
	Must(t, unix.Mount(state, "/var/lib/nfs", "", unix.MS_BIND, ""))
	t.Cleanup(func() { Must(t, unix.Unmount("/var/lib/nfs", unix.MNT_DETACH)) })
	// Clients that come back wait for this long, at least 10 s.
	for _, name := range []string{"nfsv4leasetime", "nfsv4gracetime"} {
		Must(t, os.WriteFile(filepath.Join(nfsdControl, name), []byte("10"), 0))
	}
	s.daemon("rpcbind", "-f")
	Eventually(t, "rpcbind answers", func() bool { return exec.Command("rpcinfo", "-p", "127.0.0.1").Run() == nil })
	s.daemon("rpc.mountd", "--foreground")
	s.exportfs("-o", "rw,sync,no_root_squash,insecure,no_subtree_check,fsid=0", "127.0.0.1:"+s.Root)
	s.Start()
	t.Cleanup(func() {
		s.Start() // umount asks the server, too
		unmountBeneath(t, n.Dir)
		s.Stop()
		s.exportfs("-ua")
	})
	return s
}

// daemon starts a program of the server, which ends with the test.
func (s *NFSServer) daemon(name string, args ...string) {
	s.t.Helper()
	cmd := exec.Command(name, args...)
	cmd.Stderr = os.Stderr
	ended := startDaemon(s.t, cmd)
	s.t.Cleanup(func() {
		_ = cmd.Process.Kill()
		<-ended
	})
}

// Start starts the server's threads. Clients that were waiting for it go on.
func (s *NFSServer) Start() {
	s.t.Helper()
	Run(s.t, "rpc.nfsd", "-V", "3", "-V", "4.2", "2")
	// No client has locks to reclaim.
	_ = os.WriteFile(filepath.Join(nfsdControl, "v4_end_grace"), []byte("Y"), 0)
}

// Stop stops the threads: clients hear nothing more.
func (s *NFSServer) Stop() {
	s.t.Helper()
	Run(s.t, "rpc.nfsd", "0")
}

// Export exports a directory of the root, with what is mounted on it, and makes it
// if it is not there.
func (s *NFSServer) Export(name string) (dir string) {
	s.t.Helper()
	dir = filepath.Join(s.Root, name)
	Mkdir(s.t, dir)
	options := fmt.Sprintf("rw,sync,no_root_squash,insecure,no_subtree_check,fsid=%d", 1+len(s.exports()))
	s.exportfs("-o", options, "127.0.0.1:"+dir)
	return dir
}

// Withdraw takes an export back: clients get ESTALE.
func (s *NFSServer) Withdraw(name string) {
	s.t.Helper()
	s.exportfs("-u", "127.0.0.1:"+filepath.Join(s.Root, name))
	// The kernel remembers who may.
	s.exportfs("-f")
}

// Source is what to mount for an export: version 4 knows no path of the server's.
func (s *NFSServer) Source(version, name string) string {
	if strings.HasPrefix(version, "3") {
		return "127.0.0.1:" + filepath.Join(s.Root, name)
	}
	return "127.0.0.1:/" + name
}

// Mount mounts an export as a driver does: hard, so that who waits waits on.
func (s *NFSServer) Mount(version, name, at string, options ...string) {
	s.t.Helper()
	all := append([]string{"vers=" + version, "hard", "nolock"}, options...)
	if !strings.HasPrefix(version, "3") {
		all = append(all[:2:2], options...)
	}
	Run(s.t, "mount", "-t", "nfs", "-o", strings.Join(all, ","), s.Source(version, name), at)
}

// exports lists what is exported.
func (s *NFSServer) exports() []string {
	s.t.Helper()
	var dirs []string
	for line := range strings.Lines(Run(s.t, "exportfs", "-s")) {
		dirs = append(dirs, strings.Fields(line)[0])
	}
	return dirs
}

func (s *NFSServer) exportfs(args ...string) {
	s.t.Helper()
	Run(s.t, "exportfs", args...)
}
