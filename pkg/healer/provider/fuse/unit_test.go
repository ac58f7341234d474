package fuse

import (
	"testing"

	"github.com/csi-addons/node-healer/pkg/facts"
)

func TestUnitOf(t *testing.T) {
	for cgroup, want := range map[string]string{
		"":                               "",
		"/":                              "",
		"/system.slice/rclone@a.service": "rclone@a.service",
		"/system.slice/kubelet.service/mount-helper":         "kubelet.service",
		"/system.slice/run-r0123.scope":                      "run-r0123.scope",
		"/user.slice/user-0.slice/session-1.scope":           "session-1.scope",
		"/user.slice/user-0.slice/user@0.service/app.slice/": "user@0.service",
		"/docker/0123456789ab":                               "",
	} {
		if got := unitOf(facts.FUSEDaemon{Workload: facts.Workload{Dir: cgroup}}); got != want {
			t.Errorf("%q: %q, want %q", cgroup, got, want)
		}
	}
	if got := unitOf(facts.FUSEDaemon{Workload: facts.Workload{PodUID: "uid", Dir: "/kubepods.slice/x.scope"}}); got != "" {
		t.Errorf("in a pod: %q", got)
	}
}
