package integration

import (
	"slices"
	"strings"
	"testing"

	"github.com/csi-addons/node-healer/test/harness"
	"github.com/csi-addons/node-healer/test/harness/cluster"
)

// forgets has the server forget what it read by name, as it does within an hour.
func (m *member) forgets() {
	m.T.Helper()
	m.Stop()
	m.Start()
}

// TestModeOfAnObject sets each mode on each object that may have one, and removes it
// again.
func TestModeOfAnObject(t *testing.T) {
	m := newMember(t)
	m.Start()
	v := m.ruled("lost")
	for _, s := range v.subjects() {
		t.Run(s.kind, func(*testing.T) {
			word := s.says + ", annotation " + modeOfHealing
			s.Mode("check")
			v.Refused("mode check by " + word)
			s.Mode("heal")
			v.Heals()
			for _, bad := range []string{"Heal", "heal ", "", "on"} {
				s.Mode(bad)
				v.Refused(word, `"`+bad+`" is none of off, check, heal, and counts as check`)
			}
			s.NoMode()
			v.Heals()
			s.Mode("off")
			v.Off("mode off by " + word)
			s.NoMode()
			m.forgets() // nothing is checked, so it is not read
			v.Heals()
		})
	}
}

// TestStrictestMode has two objects disagree, in both directions: a tenant, who writes
// to pods and claims, cannot overrule an administrator.
func TestStrictestMode(t *testing.T) {
	m := newMember(t)
	m.Start()
	v := m.ruled("torn")
	all := v.subjects()
	for i, general := range all {
		for _, specific := range all[i+1:] {
			t.Run(general.kind+" and "+specific.kind, func(*testing.T) {
				specific.Mode("heal")
				general.Mode("check")
				v.Refused("mode check by " + general.says)
				general.Mode("heal")
				specific.Mode("a typo")
				v.Refused(specific.says)
				general.Mode("off")
				v.Off("mode off by " + general.says)
				specific.Mode("heal")
				m.forgets()
				v.Off("mode off by " + general.says)
				general.Mode("heal")
				m.forgets()
				v.Heals()
				specific.NoMode()
				general.NoMode()
			})
		}
	}
}

// TestOffStopsChangesAtOnce stops steps at once, although checks go on for a while:
// each object is read again before a step.
func TestOffStopsChangesAtOnce(t *testing.T) {
	m := newMember(t)
	news := m.between()
	m.Start()
	v := m.ruled("stopped")
	for _, s := range v.subjects() {
		t.Run(s.kind, func(*testing.T) {
			v.Heals()
			news.Lag()
			s.Mode("off")
			before := m.Table()
			m.Expect("abnormal", v.Request(), "Refused: rebind", "mode off by "+s.says)
			m.SameTable(before)
			news.Pass()
			s.NoMode()
			m.forgets()
		})
	}
}

// TestModeOfTwoPods has two pods that share a volume disagree: each target follows its
// own pod's annotation, the staging mount point the stricter one.
func TestModeOfTwoPods(t *testing.T) {
	m := newMember(t)
	m.Start()
	v := m.ruled("shared")
	other := cluster.Create(t, m.api, m.unstarted("other", v.object.Claim))
	mountPoint := v.MountPointOf(string(other.UID))
	v.Publish(string(other.UID))
	v.Heals()
	theirs, look := m.subject(other), v.asks()["NodeGetVolumeHealth, staged"]

	theirs.Mode("off")
	harness.Eventually(t, "the staging mount point is off", func() bool { return saysAll(look(), "not checked", theirs.says) })
	v.Heals()

	theirs.Mode("check")
	harness.Eventually(t, "the staging mount point is checked", func() bool { return !saysAll(look(), "not checked") })
	harness.Run(t, "umount", mountPoint)
	said := ""
	defer func() {
		if t.Failed() {
			t.Log(said)
		}
	}()
	harness.Eventually(t, "one is healed and the other refused", func() bool {
		if m.mounted(v.MountPoint()) {
			v.Lose() // what an earlier call healed, to which the API did not answer for the other
		}
		said = m.answer(v.Request())
		return saysAll(said, "abnormal:", "Done: rebind", "Refused: rebind", "mode check by "+theirs.says)
	})
	if m.mounted(mountPoint) || !m.mounted(v.MountPoint()) {
		t.Errorf("want only %s mounted\n%s", v.MountPoint(), strings.Join(m.Table(), "\n"))
	}
}

// TestModeAndWrites tries no write on a volume that may only be checked, whichever
// object says so.
func TestModeAndWrites(t *testing.T) {
	m := newMember(t)
	m.Start()
	v := m.newClaimed("ext4", "written")
	cluster.Create(t, m.api, v.object.Attachment(thisNode))
	harness.Run(t, "mount", "-o", "remount,errors=continue", v.Staging)
	m.Expect("healthy", v.Request())
	countError(t, v.Volume)
	claim := m.subject(v.claim)
	for _, c := range []struct {
		change func()
		says   string
	}{
		{func() { claim.Mode("check") }, "no write was tried: mode check by " + claim.says},
		{claim.NoMode, "a write still succeeds"},
		{func() { m.Settings(map[string]string{"mode": "check"}) }, "no write was tried: mode check by " + settingsName},
		{func() { m.Settings(nil) }, "a write still succeeds"},
	} {
		c.change()
		harness.Eventually(t, c.says, func() bool { return saysAll(m.answer(v.Request()), "FilesystemErrors", c.says) })
	}
}

// TestServerThatOnlyChecks heals nothing with --mode=check, whatever annotations say.
func TestServerThatOnlyChecks(t *testing.T) {
	m := newMember(t)
	m.Start()
	v := m.ruled("flagged")
	v.Heals()
	m.Stop()
	m.Args = append(m.Args, "--mode=check")
	m.Start()
	pod := m.subject(v.pod)
	pod.Mode("off")
	v.Off(pod.says)
	pod.Mode("heal")
	v.Refused("--mode=check")
}

// TestNodeThatIsGone heals nothing on a node that the API does not know.
func TestNodeThatIsGone(t *testing.T) {
	m := newMember(t)
	m.Start()
	v := m.ruled("orphaned")
	v.Heals()
	cluster.Delete(t, m.api, m.object)
	v.Refused("what the cluster wants is", `nodes "node-1" not found`)
	m.object = cluster.Create(t, m.api, cluster.Node(thisNode))
	v.Heals()
}

// TestRequestsAreTheNodesOwn: a node lists and watches what belongs to it, and reads
// all else by name, also for a step. A second check asks for nothing.
func TestRequestsAreTheNodesOwn(t *testing.T) {
	m := newMember(t)
	asked := m.between()
	m.Start()
	v := m.ruled("own")
	m.Expect("healed", v.Request())
	m.Expect("healthy", v.Request())
	v.becomes("healthy")
	harness.Eventually(t, "pod and claim are told, too", func() bool {
		return strings.Count(m.api.Kubectl(t, "get", "events", "-n", m.namespace, "--field-selector=reason=VolumeHealed"), "VolumeHealed") == 2
	})
	followed := []string{
		"/api/v1/pods spec.nodeName=" + thisNode + ",status.phase!=Succeeded,status.phase!=Failed", "/api/v1/nodes metadata.name=" + thisNode,
		"/api/v1/namespaces/" + ownNamespace + "/configmaps metadata.name=" + ownConfigMap,
	}
	harness.Eventually(t, "it follows them", func() bool { // which a busy machine may begin late
		return !slices.ContainsFunc(followed, func(path string) bool { return !slices.Contains(asked.Requests(), "GET "+path+" watch") })
	})
	before := len(asked.Requests())
	for range 100 {
		m.Expect("healthy", v.Request())
	}
	if more := asked.Requests()[before:]; len(more) > 0 {
		t.Errorf("a hundred looks asked for %q", more)
	}
	named := []string{
		"/api/v1/persistentvolumes/" + v.pv.Name, "/apis/storage.k8s.io/v1/storageclasses/" + v.class.Name,
		"/api/v1/namespaces/" + m.namespace + "/persistentvolumeclaims/" + v.claim.Name,
		"/api/v1/namespaces/" + m.namespace + "/pods/" + v.pod.Name,
		"/api/v1/nodes/" + thisNode, "/api/v1/namespaces/" + ownNamespace + "/configmaps/" + ownConfigMap,
	}
	seen := map[string]bool{}
	for _, r := range asked.Requests("GET ") {
		path := strings.TrimSuffix(strings.TrimPrefix(r, "GET "), " watch")
		if seen[path] = true; !slices.Contains(named, path) && !slices.Contains(followed, path) {
			t.Errorf("it asks for %s", r)
		}
	}
	for _, path := range slices.Concat(named, followed) {
		if !seen[path] {
			t.Errorf("it never asks for %s", path)
		}
	}
}
