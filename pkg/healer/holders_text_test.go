package healer

import (
	"strings"
	"testing"

	"github.com/csi-addons/node-healer/pkg/host"
	"github.com/csi-addons/node-healer/pkg/workerops"
)

func TestHoldersText(t *testing.T) {
	const podUID = "0d6a1c2e-1111-4222-8333-9444aaaa5555"
	const container = "abcdef1234567890abcdef1234567890"
	inPod := host.HeldBy{PID: 4711, Command: "postgres", How: workerops.HowFile | workerops.HowWorkingDirectory, PodUID: podUID, ContainerID: container}
	second := inPod
	second.PID = 4712
	copied := func(namespace uint64, uid string) host.HeldMount {
		return host.HeldMount{Namespace: namespace, Path: "/secret name", PodUID: uid, ContainerID: container}
	}
	for name, tc := range map[string]struct {
		h    host.Holders
		want string
	}{
		"nobody": {host.Holders{}, ""},
		"a process of a pod": {
			host.Holders{Processes: []host.HeldBy{inPod}, Mounts: []host.HeldMount{copied(1, ""), copied(2, podUID)}},
			"held by pod " + podUID + " container abcdef123456 (pid 4711 postgres: open file, cwd), 2 mounts in 2 mount namespaces",
		},
		"processes of one container": {
			host.Holders{Processes: []host.HeldBy{inPod, second}},
			"held by pod " + podUID + " container abcdef123456 (pid 4711 postgres: open file, cwd) and 1 more",
		},
		"a pod that has it mounted": {
			host.Holders{Mounts: []host.HeldMount{copied(1, ""), copied(1, ""), copied(2, podUID)}, Cut: true},
			"held by pod " + podUID + " container abcdef123456 (mounted), at least 3 mounts in 2 mount namespaces",
		},
		"a process outside, and the device": {
			host.Holders{Processes: []host.HeldBy{{PID: 7, Command: "dd", How: workerops.HowDevice}}, Device: host.DeviceHolders{Above: []string{"dm-0"}, Loops: []string{"loop3"}, Claim: host.ClaimTaken}},
			"held by pid 7 dd (open device); device held by dm-0, loop3",
		},
		"unmounted": {
			host.Holders{Processes: []host.HeldBy{{PID: 7, Command: "tail", How: workerops.HowFile | workerops.HowDetached}}},
			"held by pid 7 tail (open file, unmounted)",
		},
		"an odd name": {
			host.Holders{Processes: []host.HeldBy{{PID: 7, Command: "a\x1b[2J\nb", How: workerops.HowFile}}},
			"held by pid 7 a??2J?b (open file)",
		},
		"only the kernel":       {host.Holders{Loops: []string{"loop1", "loop2"}}, "files held by loop1, loop2"},
		"claimed by the unseen": {host.Holders{Device: host.DeviceHolders{Claim: host.ClaimTaken}}, "device held by an exclusive opener"},
		"maybe":                 {host.Holders{Unknown: 2}, "maybe by 2 open files on unmounted filesystems"},
		"free":                  {host.Holders{Device: host.DeviceHolders{Claim: host.ClaimNone}}, ""},
		"many devices": {
			host.Holders{Device: host.DeviceHolders{Above: []string{"dm-0", "dm-1", "dm-2", "dm-3", "dm-4", "dm-5"}}},
			"device held by dm-0, dm-1, dm-2 and 3 more",
		},
	} {
		if got := HoldersText(tc.h); got != tc.want {
			t.Errorf("%s: got  %q\nwant %q", name, got, tc.want)
		}
	}
}

func TestHoldersTextIsShort(t *testing.T) {
	var h host.Holders
	for i := range 64 {
		uid := strings.Repeat("f", 30+i)
		h.Processes = append(h.Processes, host.HeldBy{PID: 1 << 22, Command: strings.Repeat("x", 15), How: 0x3f, PodUID: uid, ContainerID: strings.Repeat("a", 64)})
		h.Mounts = append(h.Mounts, host.HeldMount{Namespace: uint64(i), PodUID: uid + "e"})
		h.Loops = append(h.Loops, "loop12345")
		h.Device.Above = append(h.Device.Above, "dm-123456789")
	}
	h.Unknown, h.Cut = 1000, true
	got := HoldersText(h)
	if len(got) > maxHoldersText || !strings.Contains(got, "device held by dm-123456789, ") {
		t.Errorf("%d bytes: %s", len(got), got)
	}
	h.Unknown, h.Loops = 0, nil
	if got := HoldersText(h); len(got) > maxHoldersText || !strings.HasPrefix(got, "held by pod "+strings.Repeat("f", 30)+" container aaaaaaaaaaaa") || !strings.Contains(got, " more, at least 64 mounts") {
		t.Errorf("%d bytes: %s", len(got), got)
	}
}
