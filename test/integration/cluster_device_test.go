package integration

import (
	"os"
	"testing"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"

	"github.com/csi-addons/node-healer/test/harness"
	"github.com/csi-addons/node-healer/test/harness/cluster"
)

// suspect is a volume of which only a write tells how it is: its filesystem has
// counted an error and goes on (errors=continue).
type suspect struct {
	*claimed
	attachment *storagev1.VolumeAttachment
}

// suspect makes one that is attached to this node, or to none.
func (m *member) suspect(id string, attached bool, change ...func(*cluster.Volume)) *suspect {
	m.T.Helper()
	s := &suspect{claimed: m.newClaimed("ext4", id, change...)}
	if attached {
		s.attachment = cluster.Create(m.T, m.api, s.object.Attachment(thisNode))
	}
	// The kernel shall write nothing by itself.
	harness.Must(m.T, unix.Mount("", s.Staging, "", unix.MS_REMOUNT, "errors=continue,noinit_itable"))
	m.Expect("healthy", s.Request())
	return s
}

// sicken has the filesystem count an error, and write out all that it has.
func (s *suspect) sicken(t *testing.T) {
	t.Helper()
	countError(t, s.Volume)
	s.Freeze()() // to freeze is to empty the journal too
	s.sync(t)
}

// sync has what was written reach the disk, where it is counted.
func (s *suspect) sync(t *testing.T) {
	t.Helper()
	dir, err := os.Open(s.Staging)
	harness.Must(t, err)
	defer dir.Close()
	harness.Must(t, unix.Syncfs(int(dir.Fd())))
}

// written is how many sectors reach the disk while the volume is asked for.
func (s *suspect) written(t *testing.T, has ...string) uint64 {
	t.Helper()
	before := written(t, s.Volume)
	for range 3 {
		s.m.Expect("abnormal", s.Request(), append(has, "FilesystemErrors")...)
	}
	s.sync(t)
	return written(t, s.Volume) - before
}

// until waits until the server has heard why it must not write; empty: until it
// may.
func (s *suspect) until(t *testing.T, why string) {
	t.Helper()
	harness.Eventually(t, "what the API says is known", func() bool {
		said := s.m.answer(s.Request())
		return saysAll(said, why) && (why == "") != saysAll(said, "no write was tried")
	})
	s.sync(t)
}

// tried fails the test unless a write is tried.
func (s *suspect) tried(t *testing.T) {
	t.Helper()
	if s.written(t) == 0 {
		t.Error("no write was tried")
	}
}

// spared fails the test when anything reaches the disk.
func (s *suspect) spared(t *testing.T, why ...string) {
	t.Helper()
	if n := s.written(t, append(why, "no write was tried")...); n != 0 {
		t.Errorf("%d sectors were written", n)
	}
}

// apiChange is one change of what the API says of a suspect's volume, its claim, its
// driver or this node.
type apiChange = func(t *testing.T, s *suspect)

func attachedElsewhere(t *testing.T, s *suspect) {
	cluster.Create(t, s.m.api, s.object.Attachment("node-2"))
}

func attachedAgain(t *testing.T, s *suspect) {
	cluster.Create(t, s.m.api, s.object.Attachment(thisNode))
}

// attachedBySecondVolume attaches to the node a second PersistentVolume with the same
// volume_id.
func attachedBySecondVolume(node string) apiChange {
	return func(t *testing.T, s *suspect) {
		second := cluster.Volume{PV: s.PV + "-same", ID: s.ID, Driver: harness.Driver, Namespace: s.m.namespace, Claim: "same"}
		s.m.api.Bind(t, second)
		cluster.Create(t, s.m.api, second.Attachment(node))
	}
}

func notAttachedYet(t *testing.T, s *suspect) {
	cluster.Change(t, s.m.api, s.attachment, func(a *storagev1.VolumeAttachment) { a.Status.Attached = false })
}

func beingDetached(t *testing.T, s *suspect) { cluster.Terminate(t, s.m.api, s.attachment) }

func detached(t *testing.T, s *suspect) { cluster.Delete(t, s.m.api, s.attachment) }

func outOfService(t *testing.T, s *suspect) {
	cluster.Change(t, s.m.api, s.m.object, func(n *corev1.Node) { n.Spec.Taints = append(n.Spec.Taints, cluster.OutOfService()) })
}

func noVolumeObject(t *testing.T, s *suspect) { cluster.Delete(t, s.m.api, s.pv) }

// driverAttaches creates the driver's CSIDriver object with this attachRequired.
func driverAttaches(required bool) apiChange {
	return func(t *testing.T, s *suspect) {
		cluster.Create(t, s.m.api, cluster.CSIDriver(harness.Driver, required))
	}
}

// mayWithoutAttachment names the one driver that may write without an attachment.
func mayWithoutAttachment(driver string) apiChange {
	return func(_ *testing.T, s *suspect) {
		s.m.Settings(map[string]string{"write-without-attachment": "[" + driver + "]"})
	}
}

func claimOnlyChecked(_ *testing.T, s *suspect) { s.m.subject(s.claim).Mode("check") }

func clusterOnlyChecks(_ *testing.T, s *suspect) { s.m.Settings(map[string]string{"mode": "check"}) }

// whoMayWrite are the states of the API that TestWhoMayWrite tries.
var whoMayWrite = map[string]struct {
	access   corev1.PersistentVolumeAccessMode // empty: as the volume is made
	attached bool                              // to this node, at first
	changes  []apiChange
	why      string // why the node must not write; empty: it may
}{
	"attached":                      {attached: true},
	"attached to no node":           {why: "no VolumeAttachment says that the volume is attached to this node"},
	"attached to another node only": {changes: []apiChange{attachedElsewhere}, why: "no VolumeAttachment says that the volume is attached to this node"},
	"not attached yet":              {attached: true, changes: []apiChange{notAttachedYet}, why: "is not attached"},
	"being detached":                {attached: true, changes: []apiChange{beingDetached}, why: "is being deleted"},
	"detached":                      {attached: true, changes: []apiChange{detached}, why: "no VolumeAttachment"},
	"attached again":                {attached: true, changes: []apiChange{detached, attachedAgain}},

	"another node has it too":                      {attached: true, changes: []apiChange{attachedElsewhere}, why: "node node-2 has an attachment of the volume too"},
	"another node has it too, for one pod":         {attached: true, access: corev1.ReadWriteOncePod, changes: []apiChange{attachedElsewhere}, why: "node node-2 has"},
	"another node has it too, to read":             {attached: true, access: corev1.ReadOnlyMany, changes: []apiChange{attachedElsewhere}, why: "node node-2 has"},
	"another node has it too, which many may":      {attached: true, access: corev1.ReadWriteMany, changes: []apiChange{attachedElsewhere}},
	"another node has it by another volume's name": {attached: true, changes: []apiChange{attachedBySecondVolume("node-2")}, why: "node node-2 has"},
	"this node has it by another volume's name":    {changes: []apiChange{attachedBySecondVolume(thisNode)}, why: "no VolumeAttachment"},

	"out of service":                {attached: true, changes: []apiChange{outOfService}, why: corev1.TaintNodeOutOfService},
	"the volume's object is gone":   {attached: true, changes: []apiChange{noVolumeObject}, why: "0 PersistentVolumes"},
	"the claim may only be checked": {attached: true, changes: []apiChange{claimOnlyChecked}, why: "mode check"},

	"the driver attaches":         {attached: true, changes: []apiChange{driverAttaches(true)}},
	"the driver attaches nothing": {changes: []apiChange{driverAttaches(false)}, why: "attachRequired: false"},
	"the driver attaches nothing, and may": {
		changes: []apiChange{driverAttaches(false), mayWithoutAttachment(harness.Driver)},
	},
	"the driver attaches nothing, and another one may": {
		changes: []apiChange{driverAttaches(false), mayWithoutAttachment("another.csi.example.com")},
		why:     "attachRequired: false",
	},
	"the driver attaches nothing, and may, out of service": {
		changes: []apiChange{driverAttaches(false), mayWithoutAttachment(harness.Driver), outOfService},
		why:     corev1.TaintNodeOutOfService,
	},
}

// TestWhoMayWrite tries a write, which reaches the disk, only while the API says that
// this node may write to it.
func TestWhoMayWrite(t *testing.T) {
	for name, tc := range whoMayWrite {
		t.Run(name, func(t *testing.T) {
			m := newMember(t)
			m.Start()
			s := m.suspect("disk", tc.attached, func(v *cluster.Volume) {
				if tc.access != "" {
					v.Access = tc.access
				}
			})
			for _, change := range tc.changes {
				change(t, s)
			}
			s.sicken(t)
			s.until(t, tc.why)
			if tc.why == "" {
				s.tried(t)
			} else {
				s.spared(t, tc.why)
			}
		})
	}
}

// TestInformersThatLag changes the API while the server's informers lag: the API
// itself is asked, and decides.
func TestInformersThatLag(t *testing.T) {
	for name, tc := range map[string]struct {
		change apiChange
		why    string
	}{
		"being detached":              {change: beingDetached, why: "is being deleted"},
		"detached":                    {change: detached, why: "no VolumeAttachment"},
		"not attached":                {change: notAttachedYet, why: "is not attached"},
		"out of service":              {change: outOfService, why: corev1.TaintNodeOutOfService},
		"another node has it too":     {change: attachedElsewhere, why: "node node-2 has"},
		"the driver attaches nothing": {change: driverAttaches(false), why: "attachRequired: false"},
		"the cluster may only check":  {change: clusterOnlyChecks, why: "mode check"},
	} {
		t.Run(name, func(t *testing.T) {
			m := newMember(t)
			news := m.between()
			m.Start()
			s := m.suspect("disk", true)
			s.sicken(t)
			s.until(t, "")
			s.tried(t)
			news.Lag()
			tc.change(t, s)
			s.spared(t, tc.why)
			news.Pass()
			s.spared(t, tc.why)
		})
	}
}

// TestPodInformerThatLags is the same for a pod and its mount point.
func TestPodInformerThatLags(t *testing.T) {
	for name, change := range map[string]func(t *testing.T, v *claimed){
		"mode check":     func(_ *testing.T, v *claimed) { v.m.Settings(map[string]string{"mode": "check"}) },
		"is terminating": func(t *testing.T, v *claimed) { cluster.Terminate(t, v.m.api, v.pod) },
		"knows no pod":   func(t *testing.T, v *claimed) { cluster.Delete(t, v.m.api, v.pod) },
		"has ended": func(t *testing.T, v *claimed) {
			cluster.Change(t, v.m.api, v.pod, func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed })
		},
	} {
		t.Run(name, func(t *testing.T) {
			m := newMember(t)
			news := m.between()
			m.Start()
			v := m.lost("late")
			m.Expect("healed", v.Request())
			v.Lose()
			news.Lag()
			change(t, v)
			before := m.Table()
			m.Expect("abnormal", v.Request(), "Refused: rebind", name)
			m.SameTable(before)
		})
	}
}

// TestNoWriteWithoutTheAPI refuses a write at once without an API, and still heals a
// mount point that a running container has.
func TestNoWriteWithoutTheAPI(t *testing.T) {
	for name, tc := range map[string]struct {
		away, back func(*cluster.Cluster, testing.TB)
		why        string
	}{
		"killed": {(*cluster.Cluster).KillAPI, (*cluster.Cluster).StartAPI, "connection refused"},
		"paused": {(*cluster.Cluster).PauseAPI, (*cluster.Cluster).ResumeAPI, "deadline exceeded"},
	} {
		t.Run(name, func(t *testing.T) {
			m := newMember(t)
			m.Start()
			s := m.suspect("disk", true)
			held := m.held("held")
			s.sicken(t)
			s.until(t, "")
			s.tried(t)

			m.Transient = nil
			tc.away(m.api, t)
			m.Expect("healed", held.Request())
			s.spared(t, "the Kubernetes API does not answer", tc.why)

			tc.back(m.api, t)
			s.until(t, "")
			s.tried(t)
		})
	}
}
