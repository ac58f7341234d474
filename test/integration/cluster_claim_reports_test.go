package integration

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/csi-addons/node-healer/test/harness"
	"github.com/csi-addons/node-healer/test/harness/cluster"
)

// told lists the events on an object of the test's namespace, the oldest first,
// as "type reason count", and each with its message.
func (m *member) told(object string) (all []string, messages string) {
	m.T.Helper()
	list, err := m.api.Admin().CoreV1().Events(m.namespace).List(m.T.Context(), metav1.ListOptions{FieldSelector: "involvedObject.name=" + object})
	harness.Must(m.T, err)
	slices.SortFunc(list.Items, func(a, b corev1.Event) int { return strings.Compare(a.Name, b.Name) })
	for _, e := range list.Items {
		all = append(all, fmt.Sprintf("%s %s %d", e.Type, e.Reason, e.Count))
		messages += e.Message + "\n"
		if e.Source != (corev1.EventSource{Component: "node-healer", Host: thisNode}) || len(e.Message) > 1024 || strings.Contains(e.Message, harness.Canary) {
			m.T.Errorf("the event is %+v", e)
		}
	}
	return all, messages
}

// isTold waits for events on the claim and on the pod of a volume, and for no
// others.
func (v *claimed) isTold(want ...string) {
	v.m.T.Helper()
	for _, object := range []string{v.pod.Name, v.claim.Name} {
		var got []string
		defer func() {
			if v.m.T.Failed() {
				v.m.T.Logf("%s was told %q\n%s", object, got, v.m.Log)
			}
		}()
		harness.Eventually(v.m.T, fmt.Sprintf("%q on %s", want, object), func() bool {
			got, _ = v.m.told(object)
			return slices.Equal(got, want)
		})
	}
}

// TestEvents reports to the users of a volume what happened to it, each thing once.
func TestEvents(t *testing.T) {
	m := newMember(t)
	m.Start()
	v := m.lost("told")
	const abnormal, refused, healed = "Warning VolumeAbnormal 1", "Warning VolumeHealRefused 1", "Normal VolumeHealed 1"

	m.Expect("healed", v.Request())
	v.isTold(healed)

	csi := publishedHealth(v.Volume)
	csi.VolumePublishPath = v.MountPoint()
	v.Lose()
	csiHealth(t, m.Node, csi) // looks, and refuses nothing
	v.isTold(healed, abnormal)

	cluster.Change(t, m.api, v.pod, func(p *corev1.Pod) { setMode(p, "check") })
	for range 20 {
		m.Expect("abnormal", v.Request(), "Refused: rebind")
		csiHealth(t, m.Node, csi)
	}
	v.isTold(healed, abnormal, refused)
	_, messages := m.told(v.pod.Name)
	for _, says := range []string{"abnormal: ", "NotMounted", "refused: rebind: ", modeOfHealing} {
		if !strings.Contains(messages, says) {
			t.Errorf("no event says %q: %s", says, messages)
		}
	}

	harness.Run(t, "mount", "--bind", v.Staging, v.MountPoint())
	m.Expect("healthy", v.Request())
	v.isTold(healed, abnormal, refused, "Normal VolumeHealthy 1")

	// What a person sees.
	seen := m.api.Kubectl(t, "get", "events", "-n", m.namespace, "--field-selector=reason=VolumeHealed")
	if strings.Count(seen, " VolumeHealed ") != 2 || !strings.Contains(seen, "docs/conditions.md#NotMounted") || !strings.Contains(seen, "pod/"+v.pod.Name) || !strings.Contains(seen, "persistentvolumeclaim/"+v.claim.Name) {
		t.Errorf("kubectl shows %s", seen)
	}
	described := m.api.Kubectl(t, "describe", "pod", "-n", m.namespace, v.pod.Name)
	if !strings.Contains(described, "VolumeHealRefused") || !strings.Contains(described, "node-healer") {
		t.Errorf("kubectl describes %s", described)
	}

	// The loop says what a dry run refuses.
	m.Stop()
	m.Args = append(m.Args, "--loop=heal", "--dry-run", "--check-interval=10s")
	m.Start()
	v.Lose()
	v.isTold(healed, abnormal, refused, "Normal VolumeHealthy 1", abnormal, refused)
}

func setMode(o metav1.Object, mode string) {
	annotations := o.GetAnnotations()
	if annotations == nil {
		annotations = map[string]string{}
	}
	annotations[modeOfHealing] = mode
	o.SetAnnotations(annotations)
}

const healthPrefix = "csiaddons.openshift.io/volumehealth."

// health is the claim's annotation for a node, and on what version of it.
func (v *claimed) health(node *corev1.Node) (value, version string) {
	v.m.T.Helper()
	claim, err := v.m.api.Admin().CoreV1().PersistentVolumeClaims(v.m.namespace).Get(v.m.T.Context(), v.claim.Name, metav1.GetOptions{})
	harness.Must(v.m.T, err)
	return claim.Annotations[healthPrefix+string(node.UID)], claim.ResourceVersion
}

// becomes waits for a state on the claim, and sees that it is written as the
// CSI-Addons sidecar writes it, to the letter, and after that for which reasons pods may be evicted.
func (v *claimed) becomes(state string, evictable ...string) (since time.Time, version string) {
	v.m.T.Helper()
	t := v.m.T
	var value string
	harness.Eventually(t, "the claim is "+state, func() bool {
		value, version = v.health(v.m.object)
		return strings.HasPrefix(value, `{"state":"`+state+`",`)
	})
	// As the controller's clean-up reads it, and the sidecar too.
	var read struct {
		State, LastChecked, Since, Node string
	}
	harness.Must(t, json.Unmarshal([]byte(value), &read))
	checked, err := time.Parse(time.RFC3339, read.LastChecked)
	harness.Must(t, err)
	since, err = time.Parse(time.RFC3339, read.Since)
	harness.Must(t, err)
	more := ""
	if len(evictable) > 0 {
		more = `,"evictable":["` + strings.Join(evictable, `","`) + `"]`
	}
	want := fmt.Sprintf(`{"state":"%s","lastChecked":"%s","since":"%s","node":"node-1"%s}`,
		state, checked.UTC().Format(time.RFC3339), since.UTC().Format(time.RFC3339), more)
	if value != want || since.After(checked) {
		t.Errorf("got %s, want %s", value, want)
	}
	return since, version
}

// TestHealthOfAClaim writes changes when they happen, beside other writers.
func TestHealthOfAClaim(t *testing.T) {
	m := newMember(t)
	m.Start()
	v := m.newClaimed("ext4", "annotated")
	other := cluster.Create(t, m.api, cluster.Node("node-2"))
	const theirs = `{"state":"unhealthy","lastChecked":"2026-01-01T00:00:00Z","since":"2026-01-01T00:00:00Z","node":"node-2"}`
	cluster.Change(t, m.api, v.claim, func(c *corev1.PersistentVolumeClaim) {
		c.Annotations[healthPrefix+string(other.UID)] = theirs
	})
	m.Expect("healthy", v.Request())
	since, version := v.becomes("healthy")
	for range 50 {
		m.Expect("healthy", v.Request())
	}
	if _, now := v.health(m.object); now != version {
		t.Error("checks that change nothing were written to the claim")
	}

	t.Run("in another process", func(t *testing.T) {
		m.Stop()
		m.Start()
		m.Expect("healthy", v.Request())
		if again, _ := v.becomes("healthy"); !again.Equal(since) {
			t.Errorf("healthy since %s, was %s", again, since)
		}
	})
	v.Lose()
	cluster.Change(t, m.api, v.pod, func(p *corev1.Pod) { setMode(p, "check") })
	m.Expect("abnormal", v.Request())
	v.becomes("unhealthy")
	cluster.Change(t, m.api, v.pod, func(p *corev1.Pod) { setMode(p, "heal") })
	harness.Eventually(t, "the mode is known", func() bool { a, _ := m.Call(v.Request()); return !a.GetAbnormal() })
	v.becomes("healthy")

	if value, _ := v.health(other); value != theirs {
		t.Errorf("another node's is %s", value)
	}
	claim, err := m.api.Admin().CoreV1().PersistentVolumeClaims(m.namespace).Get(t.Context(), v.claim.Name, metav1.GetOptions{})
	harness.Must(t, err)
	if claim.Annotations["pv.kubernetes.io/bind-completed"] != "yes" || claim.Spec.VolumeName != v.PV {
		t.Errorf("the claim has lost something: %+v", claim)
	}
}

// TestReportsAfterAnOutage reports after an outage of the API what happened during it,
// with its own time, and delays no caller.
func TestReportsAfterAnOutage(t *testing.T) {
	for name, outage := range map[string]func(*cluster.Cluster, testing.TB){
		"gone": (*cluster.Cluster).KillAPI,
		"hung": (*cluster.Cluster).PauseAPI,
	} {
		t.Run(name, func(t *testing.T) {
			m := newMember(t)
			m.Start()
			v := m.lost("outage")
			v.becomes("healthy")
			// A container proves by itself that the mount point is wanted.
			m.NewContainer(string(v.pod.UID), v.Staging)
			m.Transient = nil
			outage(m.api, t)
			m.Expect("healed", v.Request())
			m.api.StartAPI(t)
			m.api.ResumeAPI(t)
			v.isTold("Normal VolumeHealed 1")
			v.becomes("healthy")
		})
	}
}

// TestClaimOfTheSameName is never written to in place of the one that was deleted.
func TestClaimOfTheSameName(t *testing.T) {
	m := newMember(t)
	m.Start()
	v := m.newClaimed("ext4", "replaced")
	cluster.Delete(t, m.api, v.claim)
	again := v.claim.DeepCopy()
	again.ResourceVersion, again.UID = "", ""
	cluster.Create(t, m.api, again)
	for range 20 {
		m.Expect("healthy", v.Request())
	}
	if value, _ := v.health(m.object); value != "" {
		t.Errorf("it says %s", value)
	}
}
