package ops

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/csi-addons/node-healer/pkg/facts"
)

// The host's mount namespace, two that have its owner, and two that have not.
const (
	home    = 100
	one     = 101
	two     = 102
	foreign = 103
	strange = 104
)

// recorded is a process in a recorded procfs.
type recorded struct {
	pid       int
	cgroup    string
	namespace uint64
	started   uint64
	flags     int
	// name is what the process calls itself, exe the file that it runs.
	name, exe string
}

const (
	inA = "/kubepods/pod" + podUID + "/aaaaaaaaaaaa"
	inB = "/kubepods/pod" + podUID + "/bbbbbbbbbbbb"
)

// containersAmong finds the containers among recorded processes.
func containersAmong(t *testing.T, processes ...recorded) []facts.Container {
	t.Helper()
	root := t.TempDir()
	must(t, os.Mkdir(filepath.Join(root, "thread-self"), 0o700))
	for _, p := range append(processes, recorded{pid: 1, cgroup: "/", namespace: home}) {
		dir := filepath.Join(root, strconv.Itoa(p.pid))
		must(t, os.MkdirAll(filepath.Join(dir, "ns"), 0o700))
		stat := fmt.Sprintf("%d (%s) S 0 0 0 0 0 %d %s %d 0 0\n", p.pid, cmp.Or(p.name, "app"), p.flags, strings.Repeat("0 ", 12), p.started)
		must(t, os.WriteFile(filepath.Join(dir, "stat"), []byte(stat), 0o600))
		must(t, os.WriteFile(filepath.Join(dir, "cgroup"), []byte("0::"+p.cgroup+"\n"), 0o600))
		if p.namespace != 0 {
			must(t, os.Symlink(fmt.Sprintf("mnt:[%d]", p.namespace), filepath.Join(dir, "ns/mnt")))
		}
		if p.exe != "" {
			must(t, os.Symlink(p.exe, filepath.Join(dir, "exe")))
		}
	}
	must(t, os.Mkdir(filepath.Join(root, "thread-self/ns"), 0o700))
	must(t, os.Symlink(fmt.Sprintf("mnt:[%d]", home), filepath.Join(root, "thread-self/ns/mnt")))
	proc, err := openDir(root)
	must(t, err)
	defer unix.Close(proc)
	o := &owners{known: map[uint64]bool{home: true, one: true, two: true, foreign: false, strange: false}}
	return walked(t, func() (ProcessesAnswer, error) {
		s := &scan{proc: procfs(proc), end: time.Now().Add(time.Minute)}
		return s.processes(o, ProcessesQuery{})
	}).Containers
}

var containersExamples = map[string]struct {
	processes []recorded
	want      []string // container, process and namespace, or why not
}{
	"one": {processes: []recorded{{pid: 10, cgroup: inA, namespace: one}}, want: []string{"aaaaaaaaaaaa 10 101"}},
	"two of one pod": {
		processes: []recorded{{pid: 10, cgroup: inA, namespace: one}, {pid: 11, cgroup: inB, namespace: two}},
		want:      []string{"aaaaaaaaaaaa 10 101", "bbbbbbbbbbbb 11 102"},
	},
	"its oldest process decides": {
		processes: []recorded{{pid: 10, cgroup: inA, namespace: two, started: 9}, {pid: 11, cgroup: inA, namespace: one, started: 7}},
		want:      []string{"aaaaaaaaaaaa 11 101"},
	},
	"wherever it has moved": {
		processes: []recorded{{pid: 10, cgroup: inA + "/x/y", namespace: one, started: 7}, {pid: 11, cgroup: inA, namespace: two, started: 9}},
		want:      []string{"aaaaaaaaaaaa 10 101"},
	},
	"started in one tick": {
		processes: []recorded{{pid: 11, cgroup: inA, namespace: two}, {pid: 10, cgroup: inA, namespace: one}},
		want:      []string{"aaaaaaaaaaaa 10 101"},
	},
	"the oldest is in a foreign one": {
		processes: []recorded{{pid: 10, cgroup: inA, namespace: foreign}, {pid: 11, cgroup: inA, namespace: one, started: 1}},
		want:      []string{"aaaaaaaaaaaa 11 101"},
	},
	"an application made a foreign one": {
		processes: []recorded{{pid: 10, cgroup: inA, namespace: one}, {pid: 11, cgroup: inA, namespace: foreign, started: 1}},
		want:      []string{"aaaaaaaaaaaa 10 101"},
	},
	"all in foreign ones": {
		processes: []recorded{{pid: 10, cgroup: inA, namespace: foreign}, {pid: 11, cgroup: inA, namespace: strange}},
		want:      []string{"aaaaaaaaaaaa foreign"},
	},
	"the host's own": {
		processes: []recorded{{pid: 10, cgroup: inA, namespace: home}, {pid: 11, cgroup: inA, namespace: one, started: 1}},
	},
	"a thread of the kernel": { // as vhost's, which is in the cgroup of the virtual machine
		processes: []recorded{{pid: 10, cgroup: inA, namespace: home, flags: 2129984}, {pid: 11, cgroup: inA, namespace: one, started: 1}},
		want:      []string{"aaaaaaaaaaaa 11 101"},
	},
	"has ended": {processes: []recorded{{pid: 10, cgroup: inA}}},
	"its oldest has ended": {
		processes: []recorded{{pid: 10, cgroup: inA}, {pid: 11, cgroup: inA, namespace: two, started: 1}},
		want:      []string{"aaaaaaaaaaaa 11 102"},
	},
	"outside of pods": {
		processes: []recorded{{pid: 10, cgroup: "/system.slice/a.service", namespace: one}},
		want:      []string{" 10 101"},
	},
	"a name like the rest of the line": {
		processes: []recorded{
			{pid: 10, cgroup: inA, namespace: two, started: 9},
			{pid: 11, cgroup: inA, namespace: one, started: 7, name: "a) S 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 99 (b\n"},
		},
		want: []string{"aaaaaaaaaaaa 11 101"},
	},
	"Kata": {
		processes: []recorded{
			{pid: 10, cgroup: "/kubepods/pod" + podUID + "/kata_c", namespace: home, name: "containerd-shim"},
			{pid: 11, cgroup: "/kubepods/pod" + podUID + "/kata_c", namespace: home, started: 1, name: "qemu-system-x86"},
		},
		want: []string{" qemu-system-"},
	},
	"Kata on RHEL and OpenShift": {
		processes: []recorded{
			{pid: 10, cgroup: "/kubepods/pod" + podUID + "/kata_c", namespace: home, name: "containerd-shim"},
			{pid: 11, cgroup: "/kubepods/pod" + podUID + "/kata_c", namespace: home, started: 1, name: "qemu-kvm"},
		},
		want: []string{" qemu-kvm"},
	},
	"Kata's file server": {
		processes: []recorded{{pid: 10, cgroup: inA, namespace: one, name: "virtiofsd"}},
		want:      []string{"aaaaaaaaaaaa virtiofsd"},
	},
	"gVisor": {
		processes: []recorded{{pid: 10, cgroup: inA, namespace: one, name: "exe", exe: "/usr/bin/runsc"}},
		want:      []string{"aaaaaaaaaaaa runsc"},
	},
	"gVisor, upgraded since": {
		processes: []recorded{{pid: 10, cgroup: inA, namespace: one, name: "exe", exe: "/usr/bin/runsc (deleted)"}},
		want:      []string{"aaaaaaaaaaaa runsc"},
	},
	"gVisor's file server": {
		processes: []recorded{{pid: 10, cgroup: inA, namespace: one, name: "runsc-gofer"}},
		want:      []string{"aaaaaaaaaaaa runsc-gofer"},
	},
	"another exe": {
		processes: []recorded{{pid: 10, cgroup: inA, namespace: one, name: "exe", exe: "/bin/app"}},
		want:      []string{"aaaaaaaaaaaa 10 101"},
	},
	"a process that calls itself like it": {
		processes: []recorded{{pid: 10, cgroup: inA, namespace: one}, {pid: 11, cgroup: inA, namespace: one, started: 1, name: "qemu-system-x86"}},
		want:      []string{"aaaaaaaaaaaa 10 101"},
	},
	"a name that starts alike": {
		processes: []recorded{{pid: 10, cgroup: inA, namespace: one, name: "firecrackers"}},
		want:      []string{"aaaaaaaaaaaa 10 101"},
	},
	"a virtual machine outside of pods": {
		processes: []recorded{{pid: 10, cgroup: "/machine.slice", namespace: one, name: "qemu-system-x86"}},
		want:      []string{" 10 101"},
	},
	"none": {},
}

func TestContainers(t *testing.T) {
	for name, tc := range containersExamples {
		t.Run(name, func(t *testing.T) {
			var got []string
			for _, c := range containersAmong(t, tc.processes...) {
				what := fmt.Sprint(c.PID, " ", c.Namespace)
				switch {
				case c.Sandbox != "":
					what = c.Sandbox
				case c.Foreign:
					what = "foreign"
				}
				got = append(got, c.ContainerID+" "+what)
			}
			if !slices.Equal(got, tc.want) {
				t.Errorf("%q, want %q", got, tc.want)
			}
		})
	}
}

// Whoever calls itself pause is taken for the pod's own only if it was there first.
func TestPause(t *testing.T) {
	all := containersAmong(t,
		recorded{pid: 10, cgroup: inA, namespace: one, name: "pause"},
		recorded{pid: 11, cgroup: inB, namespace: two, name: "pause", started: 1})
	if len(all) != 2 || !all[0].Pause || all[1].Pause {
		t.Errorf("%+v", all)
	}
}

func TestStartOfAContainer(t *testing.T) {
	all := containersAmong(t, recorded{pid: 10, cgroup: inA, namespace: foreign, started: 250}, recorded{pid: 11, cgroup: inA, namespace: foreign, started: 900})
	if len(all) != 1 || all[0].Started != 2500*time.Millisecond {
		t.Errorf("%+v", all)
	}
}
