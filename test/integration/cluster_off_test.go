package integration

import (
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/csi-addons/node-healer/pkg/api/healerpb"
	"github.com/csi-addons/node-healer/test/harness"
	"github.com/csi-addons/node-healer/test/harness/faultfs"
)

// asks are the calls that look at a volume, by every path that may name it. Each
// gives the answer in words.
func (v *claimed) asks() map[string]func() string {
	ctx, node := v.m.T.Context(), csi.NewNodeClient(v.m.Conn)
	heal := func(change func(*healerpb.NodeHealerRequest)) func() string {
		return func() string {
			r := v.Request()
			change(r)
			return v.m.answer(r)
		}
	}
	health := func(published, staged string) func() string {
		return func() string {
			a, err := node.NodeGetVolumeHealth(ctx, &csi.NodeGetVolumeHealthRequest{
				VolumeId: v.ID, VolumePublishPath: published, StagingTargetPath: staged,
			})
			if err != nil {
				return said(err)
			}
			return a.String()
		}
	}
	return map[string]func() string{
		"NodeHealer":                    heal(func(*healerpb.NodeHealerRequest) {}),
		"NodeHealer, no staging path":   heal(func(r *healerpb.NodeHealerRequest) { r.StagingTargetPath = "" }),
		"NodeHealer, the staging path":  heal(func(r *healerpb.NodeHealerRequest) { r.VolumePath = v.Staging }),
		"NodeHealer, another volume_id": heal(func(r *healerpb.NodeHealerRequest) { r.VolumeId = "another" }),
		"NodeGetVolumeHealth":           health(v.MountPoint(), v.Staging),
		"NodeGetVolumeHealth, staged":   health("", v.Staging),
		"NodeGetVolumeHealth, by ID":    health("", ""),
	}
}

// TestOffIsNotChecked counts the requests that reach a volume: none while it is off,
// by whichever path it is named, and a hang of it delays no call.
func TestOffIsNotChecked(t *testing.T) {
	m := newMember(t)
	m.Start()
	volume, fs := m.NewFUSEVolume("alone", faultfs.Config{})
	v := m.claimed(volume)
	m.Expect("healthy", v.Request())
	for name, ask := range v.asks() {
		before := fs.Requests(faultfs.All)
		answer := ask()
		if fs.Requests(faultfs.All) == before && !saysAll(name, "another volume_id") {
			t.Errorf("%s looks at nothing, so that nothing is shown: %s", name, answer)
		}
	}

	off := m.subject(v.claim)
	off.Mode("off")
	m.forgets()
	isOff := func(answer string) bool {
		return saysAll(answer, "Unknown: ", "not checked", "mode off by "+off.says)
	}
	harness.Eventually(t, "the volume is off", func() bool { return isOff(m.answer(v.Request())) })
	before := fs.Requests(faultfs.All)
	for name, ask := range v.asks() {
		if answer := ask(); !isOff(answer) {
			t.Errorf("%s answers %s", name, answer)
		}
		if asked := fs.Requests(faultfs.All) - before; asked > 0 {
			t.Errorf("%s: %d requests reached the daemon", name, asked)
		}
	}

	fs.Stop()
	for name, ask := range v.asks() {
		if answer := ask(); !isOff(answer) || fs.Waiting() > 0 {
			t.Errorf("%s answers %s, and %d requests wait for the daemon", name, answer, fs.Waiting())
		}
	}
	fs.Continue()
	off.NoMode()
	m.forgets()
	harness.Eventually(t, "the volume is checked again", func() bool { return !isOff(m.answer(v.Request())) })
	m.Expect("healthy", v.Request())
}

// TestOffOfABlockVolume covers both paths of a block volume: kubelet's link names pod
// and volume too.
func TestOffOfABlockVolume(t *testing.T) {
	m := newMember(t)
	m.Start()
	v := m.newClaimed("block", "raw")
	link := v.Request()
	link.VolumePath = v.PodLink(string(v.pod.UID))
	m.Expect("healthy", v.Request())
	m.Expect("healthy", link)
	for _, s := range []subject{m.subject(v.pod), m.subject(v.pv)} {
		s.Mode("off")
		m.forgets()
		for _, r := range []*healerpb.NodeHealerRequest{v.Request(), link} {
			harness.Eventually(t, r.GetVolumePath()+" is off", func() bool {
				return saysAll(m.answer(r), "Unknown: ", "not checked", "mode off by "+s.says)
			})
		}
		s.NoMode()
		m.forgets()
	}
}
