package why

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/prometheus/procfs"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/csi-addons/node-healer/internal/mount"
	"github.com/csi-addons/node-healer/internal/operation"
	"github.com/csi-addons/node-healer/internal/wire"
	"github.com/csi-addons/node-healer/pkg/facts"
	"github.com/csi-addons/node-healer/pkg/facts/layout"
)

// workerEnv makes a process of this program one of its own workers.
const workerEnv = "HEALERCTL_WORKER"

// What a worker reads. None of it touches a volume, but each may hang: kubelet's directories
// with the node's disk, a process's arguments with what that process waits for, a driver.
var (
	lookForWaits = operation.Define("why-waits", operation.Spent, waits)
	readArgument = operation.Define("why-argument", operation.Spent, lastPath)
	listPods     = operation.Define("why-pods", operation.Spent, podDirectories)
	askDriver    = operation.Define("why-driver", operation.Spent, probe)
)

// Worker serves these operations and its own, and never returns, in a process that was started as
// a worker. A main calls it first.
func Worker(ops ...operation.Servable) {
	if os.Getenv(workerEnv) == "" {
		return
	}
	if err := operation.Serve(append(ops, lookForWaits, readArgument, listPods, askDriver)...); err != nil {
		fmt.Fprintln(os.Stderr, "healerctl worker:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

const (
	// betweenLooks is the time in which a thread that does not hang runs at least once.
	betweenLooks = time.Second
	// programAge is how long a mount or umount may take.
	programAge = 5 * time.Second
)

// programs mount and unmount, and end. Those that stay as daemons, such as mount.ntfs, are
// not among them.
var programs = []string{"mount", "umount", "fusermount", "fusermount3", "mount.nfs", "mount.nfs4", "umount.nfs", "umount.nfs4", "mount.cifs", "mount.ceph"}

// waitingProcess is a process, or a thread of it, that waits in the kernel.
type waitingProcess struct {
	PID, TID int
	Command  string
	State    string
	// Function is the kernel's that it waits in; empty if the kernel does not tell.
	Function string
	// Switches counts how often it has waited: a thread with much to read or write is found
	// waiting most of the time, and never twice in the same wait.
	Switches uint64
	// Age is that of a program; it is not known of others.
	Age time.Duration
	// Program is true for one of programs, OfPod for a process of the pod's containers,
	// Mounting for a thread within a system call that mounts or unmounts.
	Program, OfPod, Mounting bool
}

// waits returns what waits in two looks at all processes.
func waits(podUID string) ([]waitingProcess, error) {
	before, err := look(podUID)
	if err != nil || len(before) == 0 {
		return nil, err
	}
	time.Sleep(betweenLooks)
	after, err := look(podUID)
	return slices.DeleteFunc(after, func(w waitingProcess) bool {
		return !slices.ContainsFunc(before, func(b waitingProcess) bool {
			return b.PID == w.PID && b.TID == w.TID && b.Switches == w.Switches
		})
	}), err
}

func look(podUID string) (found []waitingProcess, err error) {
	processes, err := procfs.AllProcs()
	for _, process := range processes {
		stat, err := process.Stat()
		if err != nil {
			continue // it has ended
		}
		w := waitingProcess{PID: process.PID, Command: stat.Comm}
		if w.Program = slices.Contains(programs, stat.Comm) && stat.State != "Z" && mayMount(process); w.Program {
			w.in(process, stat.State)
			started, err := stat.StartTime()
			w.Age = time.Since(time.Unix(int64(started), 0))
			if err == nil && w.Age > programAge {
				found = append(found, w)
			}
			continue
		}
		found = append(found, threads(w, process, podUID)...)
	}
	return found, err
}

// threads returns one thread of a process that waits uninterruptibly, if that matters: what
// waits in the same place is named once.
func threads(w waitingProcess, process procfs.Proc, uid string) []waitingProcess {
	all, _ := procfs.AllThreads(w.PID)
	for _, thread := range all {
		stat, err := thread.Stat()
		if err != nil || stat.State != "D" {
			continue
		}
		w.in(thread, stat.State)
		task := fmt.Sprintf("/proc/%d/task/%d", w.PID, w.TID)
		stack, _ := os.ReadFile(task + "/stack") // CAP_SYS_ADMIN
		cgroup, _ := os.ReadFile(task + "/cgroup")
		w.Mounting = mayMount(process) && slices.ContainsFunc([]string{"sys_umount", "sys_mount", "sys_fsconfig", "sys_move_mount"}, func(call string) bool { return strings.Contains(string(stack), call) })
		// kubelet's cgroups have the UID as it is, systemd's slices with underscores.
		w.OfPod = uid != "" && (strings.Contains(string(cgroup), uid) || strings.Contains(string(cgroup), strings.ReplaceAll(uid, "-", "_")))
		if w.Mounting || w.OfPod {
			return []waitingProcess{w}
		}
	}
	return nil
}

// in says in what a thread waits.
func (w *waitingProcess) in(thread procfs.Proc, state string) {
	status, _ := thread.NewStatus()
	w.TID, w.State, w.Switches = thread.PID, state, status.VoluntaryCtxtSwitches
	w.Function, _ = thread.Wchan()
}

// mayMount reports whether a process has CAP_SYS_ADMIN in our own user namespace, without which
// it mounts nothing that kubelet waits for: each pod's user may call a process mount, give it any
// path as an argument, and mount in a user namespace of its own.
func mayMount(p procfs.Proc) bool {
	own, err := os.Readlink("/proc/self/ns/user")
	its, itsErr := os.Readlink(fmt.Sprintf("/proc/%d/ns/user", p.PID))
	if err != nil || itsErr != nil || own != its {
		return false
	}
	status, err := p.NewStatus()
	return err == nil && status.CapEff&(1<<unix.CAP_SYS_ADMIN) != 0
}

// maxArgumentBytes is many times what a mount's arguments have; a process may have megabytes.
const maxArgumentBytes = 64 << 10

// optionsFollow fits -o, also behind other letters as in -no, and --options or a part of it; not -oro,
// which has its options in itself.
var optionsFollow = regexp.MustCompile(`^-([^-oO]*[oO]|-o[^=]*)$`)

// lastPath returns where a program mounts or unmounts: of
//
//	mount.cifs //server/share /dir -o username=u,password=p
//
// the last argument that is a path, and never options or a share, which may hold a password. Empty:
// there is none. It hangs as long as the process's memory is locked (mmap_lock).
func lastPath(pid int) (string, error) {
	file, err := os.Open(fmt.Sprintf("/proc/%d/cmdline", pid))
	if err != nil {
		return "", err
	}
	defer func() { _ = file.Close() }()
	raw, err := io.ReadAll(io.LimitReader(file, maxArgumentBytes))
	if err != nil || len(raw) == maxArgumentBytes {
		return "", cmp.Or(err, errors.New("too many arguments"))
	}
	all := strings.Split(string(raw), "\x00")
	for i := len(all) - 1; i > 0; i-- {
		if strings.HasPrefix(all[i], "/") && !strings.HasPrefix(all[i], "//") && !optionsFollow.MatchString(all[i-1]) {
			return all[i], nil
		}
	}
	return "", nil
}

// podDirectories returns by UID what kubelet has a directory of, with what is mounted in it. The
// mount table has paths without symbolic links, of which kubelet's root may be one.
func podDirectories(dir string) (map[string][]string, error) {
	dir, err := filepath.EvalSymlinks(dir)
	if err != nil {
		return nil, err
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	found := map[string][]string{}
	for _, e := range entries {
		if e.IsDir() {
			found[e.Name()] = []string{}
		}
	}
	table, err := os.ReadFile("/proc/thread-self/mountinfo")
	if err != nil {
		return nil, err
	}
	return found, mount.Visit(bytes.NewReader(table), func(m facts.Mount) error {
		below, is := strings.CutPrefix(m.Path, dir+"/")
		uid, _, _ := strings.Cut(below, "/")
		if mounts, known := found[uid]; is && known {
			found[uid] = append(mounts, fmt.Sprintf("%s (%s)", m.Path, m.FSType))
		}
		return nil
	})
}

// driverTimeout is how long a driver may take to say that it lives.
const driverTimeout = 5 * time.Second

type driverQuery struct {
	Kubelet layout.Kubelet
	Driver  string
}

// probe asks a driver whether it is ready (CSI's Identity.Probe), and returns where and in what
// way it gave no answer.
func probe(q driverQuery) (silent string, _ error) {
	ctx, cancel := context.WithTimeout(context.Background(), driverTimeout)
	defer cancel()
	socket, err := listensAt(ctx, q)
	if err != nil {
		return "", err
	}
	ready := new(csi.ProbeResponse)
	err = ask(ctx, socket, csi.Identity_Probe_FullMethodName, new(csi.ProbeRequest), ready)
	switch code := status.Code(err); {
	case code == codes.DeadlineExceeded, code == codes.Unavailable:
		return "at " + socket + ": " + status.Convert(err).Message(), nil
	case code == codes.FailedPrecondition, ready.GetReady() != nil && !ready.GetReady().GetValue():
		return "at " + socket + ": it says that it is not ready", nil
	}
	return "", nil // an error, too, is an answer
}

// listensAt returns the socket of a driver: the usual one, or that of its registration with kubelet, as
// where the driver's directory has another name.
func listensAt(ctx context.Context, q driverQuery) (string, error) {
	_, missing := os.Lstat(q.Kubelet.Socket(q.Driver))
	if missing == nil {
		return q.Kubelet.Socket(q.Driver), nil
	}
	info := new(emptypb.Empty)
	if err := ask(ctx, q.Kubelet.Registration(q.Driver), wire.GetInfo, new(emptypb.Empty), info); err != nil {
		return "", fmt.Errorf("%w, and its registration does not tell: %w", missing, err)
	}
	socket := wire.Endpoint(info, q.Driver, q.Kubelet.Root)
	if socket == "" {
		return "", fmt.Errorf("%w, and its registration names no socket in %s", missing, q.Kubelet.Root)
	}
	return socket, nil
}

func ask(ctx context.Context, socket, method string, req, resp any) error {
	target := url.URL{Scheme: "unix", Path: socket} // a path may hold % and ?
	client, err := grpc.NewClient(target.String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer func() { _ = client.Close() }()
	return client.Invoke(ctx, method, req, resp)
}
