package ops

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/csi-addons/node-healer/internal/mount"
	"github.com/csi-addons/node-healer/pkg/facts"
)

// firstThreadEnv makes this test binary a process whose first thread ends while another
// one lives on, until its standard input ends. Its value is a directory to have as root.
const firstThreadEnv = "NODE_HEALER_TEST_FIRST_THREAD"

func init() {
	root := os.Getenv(firstThreadEnv)
	if root == "" {
		return
	}
	proc, err := os.Open("/proc/self/ns")
	if err == nil {
		err = unix.Chroot(root)
	}
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	go func() {
		for err := error(nil); err == nil; time.Sleep(time.Millisecond) {
			_, err = unix.Readlinkat(int(proc.Fd()), "mnt", make([]byte, 64))
		}
		fmt.Println("ready")
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(0)
	}()
	_, _, _ = unix.Syscall(unix.SYS_EXIT, 0, 0, 0) // init runs on the first thread
}

// withoutFirstThread starts a process whose first thread has ended. It has a file open.
func withoutFirstThread(t *testing.T, unshare uintptr, root string, open *os.File) int {
	t.Helper()
	needsRoot(t)
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), firstThreadEnv+"="+root)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Unshareflags: unshare}
	if open != nil {
		cmd.ExtraFiles = []*os.File{open}
	}
	stdin, err := cmd.StdinPipe()
	must(t, err)
	stdout, err := cmd.StdoutPipe()
	must(t, err)
	runtime.LockOSThread() // it dies with the thread that starts it
	must(t, cmd.Start())
	t.Cleanup(func() { _ = stdin.Close(); _ = cmd.Process.Kill(); _ = cmd.Wait() })
	if line, err := bufio.NewReader(stdout).ReadString('\n'); line != "ready\n" {
		t.Fatalf("%q, %v", line, err)
	}
	if _, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/mnt", cmd.Process.Pid)); !os.IsNotExist(err) {
		t.Fatalf("its first thread lives: %v", err)
	}
	return cmd.Process.Pid
}

func TestFirstThreadEnded(t *testing.T) {
	proc, _, err := openProcfs()
	must(t, err)
	defer proc.close()
	pid := withoutFirstThread(t, 0, "/", nil)
	var seen []string
	must(t, proc.inThread(pid, func(dir string) error {
		seen = append(seen, dir)
		return nil
	}))
	seen = slices.DeleteFunc(seen, func(dir string) bool { return dir == strconv.Itoa(pid) }) // in vain
	if own := fmt.Sprintf("%d/task/", pid); len(seen) != 1 || !strings.HasPrefix(seen[0], own) || seen[0] == own+strconv.Itoa(pid) {
		t.Errorf("read %q", seen)
	}
	boom := errors.New("boom")
	if err := proc.inThread(pid, func(string) error { return boom }); !errors.Is(err, boom) {
		t.Errorf("its own error: %v", err)
	}
	// It ends while it is read.
	err = proc.inThread(pid, func(string) error {
		must(t, unix.Kill(pid, unix.SIGKILL))
		for threads := []string{"", ""}; len(threads) > 1; time.Sleep(time.Millisecond) {
			threads, _ = proc.list(strconv.Itoa(pid) + "/task")
		}
		return nil
	})
	if err == nil || !gone(err) {
		t.Errorf("it has ended: %v", err)
	}
	if err := proc.inThread(1<<22+1, func(string) error { return nil }); err == nil || !gone(err) {
		t.Errorf("no such process: %v", err)
	}
}

// recordedProcess is a procfs with one process, whose first thread has ended.
func recordedProcess(t *testing.T) (procfs, string) {
	t.Helper()
	root := t.TempDir()
	for _, thread := range []string{"10", "11"} {
		must(t, os.MkdirAll(filepath.Join(root, "10/task", thread, "ns"), 0o700))
	}
	must(t, os.Mkdir(filepath.Join(root, "10/ns"), 0o700))
	fd, err := openDir(root)
	must(t, err)
	t.Cleanup(func() { _ = unix.Close(fd) })
	return procfs(fd), root
}

// A process may start and end threads as fast as they are listed.
func TestThreadsThatEndMeanwhile(t *testing.T) {
	proc, root := recordedProcess(t)
	if err := proc.inThread(10, func(string) error { return nil }); err == nil || !gone(err) {
		t.Errorf("all have ended: %v", err)
	}
	link := filepath.Join(root, "10/task/11/ns/mnt")
	must(t, os.Symlink("mnt:[1]", link))
	reads := 0
	err := proc.inThread(10, func(dir string) error {
		if reads++; dir == "10/task/11" { // this thread ends, and another one comes
			must(t, os.Remove(link))
			other := filepath.Join(root, "10/task/12/ns")
			must(t, os.MkdirAll(other, 0o700))
			must(t, os.Symlink("mnt:[1]", filepath.Join(other, "mnt")))
		}
		return nil
	})
	if err != nil || reads != 3 {
		t.Errorf("%d reads, %v", reads, err)
	}
}

// A process may keep any number of ended threads listed, and go on in the newest one for as little
// time as it takes to look at those.
func TestNewestThreadFirst(t *testing.T) {
	proc, root := recordedProcess(t)
	for _, thread := range []string{"10", "11"} {
		must(t, os.Symlink("mnt:[1]", filepath.Join(root, "10/task", thread, "ns/mnt")))
	}
	threads, err := proc.list("10/task")
	must(t, err)
	dir, err := proc.livingThread("10")
	if want := "10/task/" + threads[1]; err != nil || dir != want {
		t.Errorf("%s, %v, want %s", dir, err, want)
	}
}

// Whoever holds any file called fuse, an unmounted device or the device under another name
// is told apart by what the kernel says of its descriptor.
func TestFUSEDaemonsWithoutFirstThread(t *testing.T) {
	f := newSilentFUSE(t)
	want := f.daemons(t) // or skips
	fake, err := os.Create(filepath.Join(t.TempDir(), "fuse"))
	must(t, err)
	unmounted, err := os.OpenFile("/dev/fuse", os.O_RDWR, 0)
	must(t, err)
	for _, file := range []*os.File{fake, unmounted} {
		defer file.Close()
		withoutFirstThread(t, 0, "/", file)
	}
	a := daemonsWalked(t, ProcessesQuery{})
	if a.Untold != 0 || a.Unread != 0 || a.Cut {
		t.Errorf("%+v", a)
	}
	if found := f.daemons(t); len(found) != len(want) {
		t.Errorf("daemons %+v, want %+v", found, want)
	}
	f.kill()
	if a = daemonsWalked(t, ProcessesQuery{}); a.Untold != 0 || a.Unread != 0 || len(f.daemons(t)) != 0 {
		t.Errorf("it has no daemon: %+v", a)
	}
}

func TestFUSEDaemonWhoseFirstThreadEnded(t *testing.T) {
	needsRoot(t)
	node := filepath.Join(t.TempDir(), "any name")
	must(t, unix.Mknod(node, unix.S_IFCHR|0o600, int(unix.Mkdev(10, 229))))
	dev, err := os.OpenFile(node, os.O_RDWR, 0)
	must(t, err)
	must(t, os.Remove(node))
	at := t.TempDir()
	must(t, unix.Mount("silent", at, "fuse.silent", 0, fmt.Sprintf("fd=%d,rootmode=40000,user_id=0,group_id=0", dev.Fd())))
	t.Cleanup(func() { _ = unix.Unmount(at, unix.MNT_DETACH) })
	f := silentFUSE{path: at, mount: mountAtPath(t, at)}
	pid := withoutFirstThread(t, 0, "/", dev)
	must(t, dev.Close())
	found := f.daemons(t)
	if len(found) != 1 || found[0].PID != pid || found[0].State == 'Z' || found[0].Started == 0 {
		t.Errorf("daemons %+v", found)
	}
	must(t, unix.Kill(pid, unix.SIGSTOP))
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(time.Millisecond) {
		if found = f.daemons(t); len(found) == 1 && found[0].State == 'T' {
			return
		}
	}
	t.Errorf("it is stopped: %+v", found)
}

// Who ends his first thread comes no earlier in the walk than his open files let him.
func TestFewestFirstWithoutFirstThread(t *testing.T) {
	var st unix.Stat_t
	must(t, unix.Stat("/proc/thread-self/fd", &st))
	if st.Size == 0 {
		t.Skip("this kernel does not tell how many descriptors a process has")
	}
	proc, _, err := openProcfs()
	must(t, err)
	defer proc.close()
	pid, ended := withoutFirstThread(t, 0, "/", nil), 1<<22+1
	s := &scan{proc: proc, end: time.Now().Add(time.Minute)}
	for sorted := []int(nil); !slices.Equal(sorted, []int{ended, pid}); { // a busy machine does not read it in time
		if sorted, _ = s.fewestFirst([]int{pid, ended}); s.cut {
			t.Fatalf("%v, want %d last", sorted, pid)
		}
	}
}

// A connection of another mount namespace is nobody's business, however many there are.
func TestFUSEDaemonsOfTheHostOnly(t *testing.T) {
	f := newSilentFUSE(t)
	must(t, unix.Unmount(f.path, unix.MNT_DETACH))
	a := daemonsWalked(t, ProcessesQuery{Known: []facts.FUSEDaemon{{Connection: f.connection(), PID: 1 << 22}}})
	of := func(d facts.FUSEDaemon) bool { return d.Connection == f.connection() }
	if slices.ContainsFunc(a.Daemons, of) || slices.ContainsFunc(a.Known, of) {
		t.Errorf("%+v", a)
	}
}

// Who could not be read counts if it may be the daemon.
func TestUnreadProcesses(t *testing.T) {
	const seconds = time.Second
	in := func(pid int, started time.Duration, cgroup string) facts.FUSEDaemon {
		return facts.FUSEDaemon{PID: pid, Started: started, Workload: WorkloadIn("0::/" + cgroup)}
	}
	const driver, tenant = "kubepods/podd/0123456789ab", "kubepods/podt/0123456789ab"
	known := in(7, seconds, driver)
	known.Connection = 42
	service := in(8, seconds, "system.slice/s3.service")
	service.Connection = 43
	for name, tc := range map[string]struct {
		unread  facts.FUSEDaemon
		of, and int
	}{
		"of a tenant":               {in(9, seconds, tenant), 0, 0},
		"of the driver's container": {in(9, seconds, driver), 1, 0},
		"of the driver's pod":       {in(9, seconds, "kubepods/podd/ba9876543210"), 1, 0},
		"itself, elsewhere":         {in(7, seconds, tenant), 1, 0},
		"another with its number":   {in(7, 2*seconds, tenant), 0, 0},
		"of the service":            {in(9, seconds, "system.slice/s3.service"), 0, 1},
		"of another service":        {in(9, seconds, "system.slice/other.service"), 0, 0},
		"nobody knows where":        {facts.FUSEDaemon{PID: 9}, 1, 1},
	} {
		of := unreadOf([]process{{FUSEDaemon: tc.unread}}, []facts.FUSEDaemon{known, known, service})
		if of[42] != tc.of || of[43] != tc.and {
			t.Errorf("%s: %v", name, of)
		}
		if _, told := of[44]; told || len(of) != 2 {
			t.Errorf("%s: %v", name, of)
		}
	}
}

// A mount table that a process shows ends at its root.
func TestNamespaceOfAProcessThatHides(t *testing.T) {
	v := newVolume(t, "tmpfs")
	hidden := t.TempDir()
	pid := withoutFirstThread(t, unix.CLONE_NEWNS, hidden, nil)
	inode, err := namespaceThrough(pid)
	must(t, err)
	namespaces, err := readNamespaces(func(table []facts.Mount) []facts.Mount {
		return slices.DeleteFunc(table, func(m facts.Mount) bool { return m.Path != v.path })
	})
	must(t, err)
	defer closeAll(namespaces)
	at := slices.IndexFunc(namespaces, func(ns namespace) bool { return mount.IsInode(int(ns.file.Fd()), inode) })
	if at < 0 || len(namespaces[at].table) != 1 {
		t.Fatalf("namespace %d of process %d is not among %+v", inode, pid, namespaces)
	}
	if namespaces[at].pid != pid || namespaces[at].cgroup == "" {
		t.Errorf("%+v", namespaces[at])
	}
	if _, err := os.Stat(v.path); err != nil {
		t.Errorf("the thread did not come back: %v", err)
	}
}

func namespaceThrough(pid int) (inode uint64, err error) {
	proc, _, err := openProcfs()
	if err != nil {
		return 0, err
	}
	defer proc.close()
	err = proc.inThread(pid, func(dir string) (err error) {
		inode, err = proc.namespaceOf(dir)
		return err
	})
	return inode, err
}

// A process that lives and of which it is not known where it is may be anywhere.
func TestContainerWithAnUnplacedProcess(t *testing.T) {
	proc, root := recordedProcess(t)
	write := func(name, text string) { must(t, os.WriteFile(filepath.Join(root, name), []byte(text), 0o600)) }
	write("10/stat", "10 (app) Z "+strings.Repeat("0 ", 18)+"250 0 0\n")
	write("10/task/11/stat", "11 (other) S "+strings.Repeat("0 ", 18)+"300 0 0\n")
	write("10/task/11/cgroup", "0::"+inA+"\n")
	must(t, os.MkdirAll(filepath.Join(root, "thread-self/ns"), 0o700))
	must(t, os.Symlink(fmt.Sprintf("mnt:[%d]", home), filepath.Join(root, "thread-self/ns/mnt")))
	link := filepath.Join(root, "10/task/11/ns/mnt")
	must(t, os.WriteFile(link, nil, 0o600)) // which no one can read as a link
	walk := func() ProcessesAnswer {
		return walked(t, func() (ProcessesAnswer, error) {
			s := &scan{proc: proc, end: time.Now().Add(time.Minute)}
			return s.processes(&owners{known: map[uint64]bool{home: true, one: true}}, ProcessesQuery{})
		})
	}
	a := walk()
	if len(a.Containers) != 1 || !a.Containers[0].Unplaced || a.Containers[0].PID != 0 || a.Containers[0].PodUID != podUID || a.Cut {
		t.Fatalf("%+v", a)
	}
	must(t, os.Remove(link))
	must(t, os.Symlink(fmt.Sprintf("mnt:[%d]", one), link))
	a = walk()
	if len(a.Containers) != 1 || a.Containers[0].Unplaced || a.Containers[0].PID != 10 || a.Containers[0].Namespace != one || a.Containers[0].Started != 2500*time.Millisecond {
		t.Errorf("placed: %+v", a)
	}
}
