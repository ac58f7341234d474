package healer

import (
	"strings"
	"testing"

	"github.com/csi-addons/node-healer/pkg/host"
)

func TestContainerNames(t *testing.T) {
	in := host.ContainerMount{Container: host.Container{Workload: host.Workload{PodUID: "uid-a", ContainerID: strings.Repeat("c", 64)}}, Mount: host.Mount{Path: "/data"}}
	for _, tc := range []struct{ got, want string }{
		{InContainer{ContainerMount: in}.String(), `pod uid-a container cccccccccccc at "/data"`},
		{StartedWith{ContainerMount: host.ContainerMount{Container: host.Container{PID: 7}, Mount: host.Mount{Path: "/a\nb"}}}.String(), `process 7 at "/a\nb"`},
		{StartedBefore{Container: host.Container{Workload: host.Workload{PodUID: "uid a"}}}.String(), "pod uid?a"},
		{ContainerName("", ""), "a container"},
		{WorkloadName("", ""), ""},
	} {
		if tc.got != tc.want {
			t.Errorf("got %s, want %s", tc.got, tc.want)
		}
	}
}
