package host

import (
	"strings"
	"testing"

	"github.com/csi-addons/node-healer/pkg/workerops"
)

func TestHoldersText(t *testing.T) {
	const container = "abcdef1234567890abcdef1234567890"
	inPod := HeldBy{PID: 4711, Command: "postgres", How: workerops.HowFile | workerops.HowWorkingDirectory, PodUID: podUID, ContainerID: container}
	second := inPod
	second.PID = 4712
	copied := func(namespace uint64, uid string) HeldMount {
		return HeldMount{Namespace: namespace, Path: "/secret name", PodUID: uid, ContainerID: container}
	}
	for name, tc := range map[string]struct {
		h    Holders
		want string
	}{
		"nobody": {Holders{}, ""},
		"a process of a pod": {
			Holders{Processes: []HeldBy{inPod}, Mounts: []HeldMount{copied(1, ""), copied(2, podUID)}},
			"held by pod " + podUID + " container abcdef123456 (pid 4711 postgres: open file, cwd), 2 mounts in 2 mount namespaces",
		},
		"processes of one container": {
			Holders{Processes: []HeldBy{inPod, second}},
			"held by pod " + podUID + " container abcdef123456 (pid 4711 postgres: open file, cwd) and 1 more",
		},
		"a pod that has it mounted": {
			Holders{Mounts: []HeldMount{copied(1, ""), copied(1, ""), copied(2, podUID)}, Cut: true},
			"held by pod " + podUID + " container abcdef123456 (mounted), at least 3 mounts in 2 mount namespaces",
		},
		"a process outside, and the device": {
			Holders{Processes: []HeldBy{{PID: 7, Command: "dd", How: workerops.HowDevice}}, Device: DeviceHolders{Above: []string{"dm-0"}, Loops: []string{"loop3"}, Swap: true, Claim: ClaimTaken}},
			"held by pid 7 dd (open device); device held by dm-0, loop3, swap",
		},
		"unmounted": {
			Holders{Processes: []HeldBy{{PID: 7, Command: "tail", How: workerops.HowFile | workerops.HowDetached}}},
			"held by pid 7 tail (open file, unmounted)",
		},
		"only the kernel":       {Holders{Kernel: []string{"loop1", "swap"}}, "files held by loop1, swap"},
		"claimed by the unseen": {Holders{Device: DeviceHolders{Claim: ClaimTaken}}, "device held by an exclusive opener"},
		"maybe":                 {Holders{Unknown: 2}, "maybe by 2 open files on unmounted filesystems"},
		"free":                  {Holders{Device: DeviceHolders{Claim: ClaimNone}}, ""},
		"many devices": {
			Holders{Device: DeviceHolders{Above: []string{"dm-0", "dm-1", "dm-2", "dm-3", "dm-4", "dm-5"}}},
			"device held by dm-0, dm-1, dm-2 and 3 more",
		},
	} {
		if got := tc.h.String(); got != tc.want {
			t.Errorf("%s: got  %q\nwant %q", name, got, tc.want)
		}
	}
}

func TestHoldersTextIsShort(t *testing.T) {
	var h Holders
	for i := range 64 {
		uid := strings.Repeat("f", 30+i)
		h.Processes = append(h.Processes, HeldBy{PID: 1 << 22, Command: strings.Repeat("x", 15), How: 0x3f, PodUID: uid, ContainerID: strings.Repeat("a", 64)})
		h.Mounts = append(h.Mounts, HeldMount{Namespace: uint64(i), PodUID: uid + "e"})
		h.Kernel = append(h.Kernel, "loop12345")
		h.Device.Above = append(h.Device.Above, "dm-123456789")
	}
	h.Unknown, h.Cut = 1000, true
	got := h.String()
	if len(got) > holdersText || !strings.Contains(got, "device held by dm-123456789, ") {
		t.Errorf("%d bytes: %s", len(got), got)
	}
	h.Unknown, h.Kernel = 0, nil
	if got := h.String(); len(got) > holdersText || !strings.HasPrefix(got, "held by pod "+strings.Repeat("f", 30)+" container aaaaaaaaaaaa") || !strings.Contains(got, " more, at least 64 mounts") {
		t.Errorf("%d bytes: %s", len(got), got)
	}
}

func TestPrintable(t *testing.T) {
	for name, want := range map[string]string{
		"postgres":               "postgres",
		"kworker/0:1":            "kworker/0?1",
		"a b\n\x00\x1b[31m\xff":  "a?b????31m?",
		"x), pod 1 (y":           "x???pod?1??y",
		"für":                    "f?r",
		strings.Repeat("y", 100): strings.Repeat("y", 40),
	} {
		if got := printable(name); got != want {
			t.Errorf("%q: %q, want %q", name, got, want)
		}
	}
}
