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
	freeze(t, s.Volume)() // to freeze is to empty the journal too
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

// TestWhoMayWrite tries a write, which reaches the disk, only while the API says that
// this node may write to it.
func TestWhoMayWrite(t *testing.T) {
	propagatedMount := func(t *testing.T, s *suspect, node string) {
		other := cluster.Volume{PV: s.PV + "-same", ID: s.ID, Driver: harness.Driver, Namespace: s.m.namespace, Claim: "same"}
		s.m.api.Bind(t, other)
		cluster.Create(t, s.m.api, other.Attachment(node))
	}
	access := func(mode corev1.PersistentVolumeAccessMode) func(*cluster.Volume) {
		return func(v *cluster.Volume) { v.Access = mode }
	}
	elsewhere := func(t *testing.T, s *suspect) { cluster.Create(t, s.m.api, s.object.Attachment("node-2")) }
	for name, tc := range map[string]struct {
		volume   func(*cluster.Volume)
		attached bool
		change   func(t *testing.T, s *suspect)
		why      string // why not; empty: it may
	}{
		"attached":                      {attached: true},
		"attached to no node":           {why: "no VolumeAttachment says that the volume is attached to this node"},
		"attached to another node only": {change: elsewhere, why: "no VolumeAttachment says that the volume is attached to this node"},
		"not attached yet": {attached: true, why: "is not attached", change: func(t *testing.T, s *suspect) {
			cluster.Change(t, s.m.api, s.attachment, func(a *storagev1.VolumeAttachment) { a.Status.Attached = false })
		}},
		"being detached": {attached: true, why: "is being deleted", change: func(t *testing.T, s *suspect) {
			cluster.Terminate(t, s.m.api, s.attachment)
		}},
		"detached": {attached: true, why: "no VolumeAttachment", change: func(t *testing.T, s *suspect) {
			cluster.Delete(t, s.m.api, s.attachment)
		}},
		"attached again": {attached: true, change: func(t *testing.T, s *suspect) {
			cluster.Delete(t, s.m.api, s.attachment)
			cluster.Create(t, s.m.api, s.object.Attachment(thisNode))
		}},
		"another node has it too":                 {attached: true, change: elsewhere, why: "node node-2 has an attachment of the volume too"},
		"another node has it too, for one pod":    {attached: true, volume: access(corev1.ReadWriteOncePod), change: elsewhere, why: "node node-2 has"},
		"another node has it too, to read":        {attached: true, volume: access(corev1.ReadOnlyMany), change: elsewhere, why: "node node-2 has"},
		"another node has it too, which many may": {attached: true, volume: access(corev1.ReadWriteMany), change: elsewhere},
		"another node has it by another volume's name": {attached: true, why: "node node-2 has", change: func(t *testing.T, s *suspect) {
			propagatedMount(t, s, "node-2")
		}},
		"this node has it by another volume's name": {why: "no VolumeAttachment", change: func(t *testing.T, s *suspect) {
			propagatedMount(t, s, thisNode)
		}},
		"out of service": {attached: true, why: corev1.TaintNodeOutOfService, change: func(t *testing.T, s *suspect) {
			cluster.Change(t, s.m.api, s.m.object, func(n *corev1.Node) { n.Spec.Taints = append(n.Spec.Taints, cluster.OutOfService()) })
		}},
		"the volume's object is gone": {attached: true, why: "0 PersistentVolumes", change: func(t *testing.T, s *suspect) {
			cluster.Delete(t, s.m.api, s.pv)
		}},
		"the driver attaches": {attached: true, change: func(t *testing.T, s *suspect) {
			cluster.Create(t, s.m.api, cluster.CSIDriver(harness.Driver, true))
		}},
		"the driver attaches nothing": {why: "attachRequired: false", change: func(t *testing.T, s *suspect) {
			cluster.Create(t, s.m.api, cluster.CSIDriver(harness.Driver, false))
		}},
		"the driver attaches nothing, and may": {change: func(t *testing.T, s *suspect) {
			cluster.Create(t, s.m.api, cluster.CSIDriver(harness.Driver, false))
			s.m.Settings(map[string]string{"write-without-attachment": "[" + harness.Driver + "]"})
		}},
		"the driver attaches nothing, and another one may": {why: "attachRequired: false", change: func(t *testing.T, s *suspect) {
			cluster.Create(t, s.m.api, cluster.CSIDriver(harness.Driver, false))
			s.m.Settings(map[string]string{"write-without-attachment": "[another.csi.example.com]"})
		}},
		"the driver attaches nothing, and may, out of service": {why: corev1.TaintNodeOutOfService, change: func(t *testing.T, s *suspect) {
			cluster.Create(t, s.m.api, cluster.CSIDriver(harness.Driver, false))
			s.m.Settings(map[string]string{"write-without-attachment": "[" + harness.Driver + "]"})
			cluster.Change(t, s.m.api, s.m.object, func(n *corev1.Node) { n.Spec.Taints = append(n.Spec.Taints, cluster.OutOfService()) })
		}},
		"the claim may only be checked": {attached: true, why: "mode check", change: func(_ *testing.T, s *suspect) {
			s.m.subject(s.claim).Mode("check")
		}},
	} {
		t.Run(name, func(t *testing.T) {
			m := newMember(t)
			m.Start()
			var changes []func(*cluster.Volume)
			if tc.volume != nil {
				changes = append(changes, tc.volume)
			}
			s := m.suspect("disk", tc.attached, changes...)
			if tc.change != nil {
				tc.change(t, s)
			}
			s.sicken(t)
			if s.until(t, tc.why); tc.why != "" {
				s.spared(t, tc.why)
			} else {
				s.tried(t)
			}
		})
	}
}

// TestInformersThatLag changes the API while the server's informers lag: the API
// itself is asked, and decides.
func TestInformersThatLag(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(t *testing.T, s *suspect)
		why    string
	}{
		"being detached": {func(t *testing.T, s *suspect) { cluster.Terminate(t, s.m.api, s.attachment) }, "is being deleted"},
		"detached":       {func(t *testing.T, s *suspect) { cluster.Delete(t, s.m.api, s.attachment) }, "no VolumeAttachment"},
		"not attached": {func(t *testing.T, s *suspect) {
			cluster.Change(t, s.m.api, s.attachment, func(a *storagev1.VolumeAttachment) { a.Status.Attached = false })
		}, "is not attached"},
		"out of service": {func(t *testing.T, s *suspect) {
			cluster.Change(t, s.m.api, s.m.object, func(n *corev1.Node) { n.Spec.Taints = append(n.Spec.Taints, cluster.OutOfService()) })
		}, corev1.TaintNodeOutOfService},
		"another node has it too": {func(t *testing.T, s *suspect) {
			cluster.Create(t, s.m.api, s.object.Attachment("node-2"))
		}, "node node-2 has"},
		"the driver attaches nothing": {func(t *testing.T, s *suspect) {
			cluster.Create(t, s.m.api, cluster.CSIDriver(harness.Driver, false))
		}, "attachRequired: false"},
		"the cluster may only check": {func(_ *testing.T, s *suspect) {
			s.m.Settings(map[string]string{"mode": "check"})
		}, "mode check"},
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

			tc.away(m.api, t)
			m.Expect("healed", held.Request())
			s.spared(t, "the Kubernetes API does not answer", tc.why)

			tc.back(m.api, t)
			s.until(t, "")
			s.tried(t)
		})
	}
}
