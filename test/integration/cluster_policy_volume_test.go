package integration

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc/status"
	storagev1 "k8s.io/api/storage/v1"

	"github.com/csi-addons/node-healer/pkg/api/healerpb"
	"github.com/csi-addons/node-healer/pkg/facts"
	"github.com/csi-addons/node-healer/test/harness"
	"github.com/csi-addons/node-healer/test/harness/cluster"
)

// ruled is a volume whose published mount is lost before every call, so
// that each answer tells what the policy is by then.
type ruled struct {
	*claimed
	class *storagev1.StorageClass
}

func (m *member) ruled(id string) ruled {
	m.T.Helper()
	class := cluster.Create(m.T, m.api, cluster.StorageClass("class-of-"+m.namespace+"-"+id, harness.Driver))
	v := m.newClaimed("ext4", id, func(v *cluster.Volume) { v.Class = class.Name })
	m.Expect("healthy", v.Request())
	v.Lose()
	return ruled{v, class}
}

// Heals waits until the volume is healed.
func (v ruled) Heals() {
	v.m.T.Helper()
	v.until("healed:")
}

// Refused waits until nothing is healed any more, for all these reasons.
func (v ruled) Refused(why ...string) {
	v.m.T.Helper()
	v.until("abnormal:", append(why, "Refused: rebind")...)
}

// Off waits until the volume is no longer checked, for all these reasons. That is no
// UNIMPLEMENTED, by which a caller would never ask again for any volume.
func (v ruled) Off(why ...string) {
	v.m.T.Helper()
	v.until("Unknown:", append(why, "not checked")...)
}

// until asks until the answer is the one wanted, because the server hears of a
// change a moment after the API has it. What was healed meanwhile is lost again;
// any other answer has changed nothing.
func (v ruled) until(start string, has ...string) {
	v.m.T.Helper()
	var last string
	defer func() {
		if v.m.T.Failed() {
			v.m.T.Logf("wanted %s %q, the last answer was %s", start, has, last)
		}
	}()
	lost := v.m.Table()
	harness.Eventually(v.m.T, "the policy is known", func() bool {
		last = v.m.answer(v.Request())
		if strings.HasPrefix(last, "healed:") {
			v.Lose()
		}
		v.m.SameTable(lost)
		return strings.HasPrefix(last, start) && saysAll(last, has...)
	})
}

// answer is a message, or the code of an error and its text.
func (m *member) answer(r *healerpb.NodeHealerRequest) string {
	a, err := m.Call(r)
	if err != nil {
		return said(err)
	}
	return a.GetMessage()
}

// mounted is true for a mount point with a mount on it.
func (m *member) mounted(mountPoint string) bool {
	return slices.ContainsFunc(harness.Mounts(m.T, "self"), func(one facts.Mount) bool { return one.Path == mountPoint })
}

// said is the code of an error and its text.
func said(err error) string {
	s := status.Convert(err)
	return s.Code().String() + ": " + s.Message()
}

func saysAll(text string, all ...string) bool {
	for _, s := range all {
		if !strings.Contains(text, s) {
			return false
		}
	}
	return true
}

// subject is an object on which a mode may stand.
type subject struct {
	t   testing.TB
	api *cluster.Cluster
	// kind and says are how an answer names it, alone and with its own name.
	kind, says string
	object     cluster.Object
}

func (m *member) subject(object cluster.Object) subject {
	name := object.GetName()
	if object.GetNamespace() != "" {
		name = object.GetNamespace() + "/" + name
	}
	kind := strings.TrimPrefix(fmt.Sprintf("%T", object), "*v1.")
	return subject{t: m.T, api: m.api, kind: kind, says: kind + " " + name, object: object}
}

// subjects are the objects that decide on the volume, the most
// specific one last.
func (v ruled) subjects() []subject {
	var all []subject
	for _, object := range []cluster.Object{v.m.object, v.class, v.pv, v.claim, v.pod} {
		all = append(all, v.m.subject(object))
	}
	return all
}

// Mode puts a mode on the object.
func (s subject) Mode(mode string) {
	s.t.Helper()
	s.annotate(func(words map[string]string) { words[modeOfHealing] = mode })
}

// NoMode takes it off.
func (s subject) NoMode() {
	s.t.Helper()
	s.annotate(func(words map[string]string) { delete(words, modeOfHealing) })
}

func (s subject) annotate(change func(words map[string]string)) {
	s.t.Helper()
	cluster.Change(s.t, s.api, s.object, func(o cluster.Object) {
		words := o.GetAnnotations()
		if words == nil {
			words = map[string]string{}
		}
		change(words)
		o.SetAnnotations(words)
	})
}
