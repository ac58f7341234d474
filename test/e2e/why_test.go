package e2e

import (
	"strings"
	"testing"
)

// saysWhy asks in the DaemonSet's pod, as kubectl exec would, why an app that has what it
// needs does not start.
func saysWhy(t *testing.T, healer *Healer, app *App) {
	t.Helper()
	_, id, _ := strings.Cut(healer.Pod("node-healer").Status.ContainerStatuses[0].ContainerID, "://")
	out, err := ctr("tasks", "exec", "--exec-id=why", id, "/usr/local/bin/healerctl", "why", "pod/"+app.Pod().Name, "--namespace=default")
	if err != nil {
		out = err.Error() // what it may not read ends it with 4
	}
	t.Log(out)
	if !strings.Contains(out, "nothing was found that is in the way") || !strings.Contains(out, "on node "+nodeName) || strings.Contains(out, "kubectl exec") {
		t.Error(out)
	}
	for _, unread := range []string{"in the kernel", "directories", "which pods", "node-healer saw", "whether driver"} {
		if strings.Contains(out, "Not read: "+unread) || strings.Contains(out, "Not read: what "+unread) || strings.Contains(out, "Not read: kubelet's "+unread) {
			t.Errorf("%s\n%s", unread, out)
		}
	}
}
