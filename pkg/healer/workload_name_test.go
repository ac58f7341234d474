package healer

import (
	"strings"
	"testing"

	"github.com/csi-addons/node-healer/pkg/facts"
)

func TestContainerNames(t *testing.T) {
	in := facts.ContainerMount{Container: facts.Container{Workload: facts.Workload{PodUID: "uid-a", ContainerID: strings.Repeat("c", 64)}}, Mount: facts.Mount{Path: "/data"}}
	for _, tc := range []struct{ got, want string }{
		{InContainer{ContainerMount: in}.String(), `pod uid-a container cccccccccccc at "/data"`},
		{StartedWith{ContainerMount: facts.ContainerMount{Container: facts.Container{PID: 7}, Mount: facts.Mount{Path: "/a\nb"}}}.String(), `process 7 at "/a\nb"`},
		{StartedBefore{Container: facts.Container{Workload: facts.Workload{PodUID: "uid a"}}}.String(), "pod uid?a"},
		{ContainerName("", ""), "a container"},
		{WorkloadName("", ""), ""},
	} {
		if tc.got != tc.want {
			t.Errorf("got %s, want %s", tc.got, tc.want)
		}
	}
}
