package driver

import (
	"context"
	"net"
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/csi-addons/node-healer/pkg/facts"
	"github.com/csi-addons/node-healer/pkg/healer"
)

func TestHealthyDriverHasNothingToSay(t *testing.T) {
	f := newFake()
	e := collect(t, f.serve(t), healthy())
	if e.Opinion != nil || e.NotAsked != "" {
		t.Errorf("%+v", e)
	}
	same(t, "paths", f.paths, []string{"/var/lib/kubelet/pods/a/mount", "/var/lib/kubelet/staged/globalmount"})
}

func entry(s csi.VolumeHealthErrorType, reason, message string) *csi.VolumeHealth_VolumeHealthEntry {
	return &csi.VolumeHealth_VolumeHealthEntry{Status: s, Reason: reason, Message: message}
}

func TestOpinionOfHealth(t *testing.T) {
	const degraded, inaccessible, lost = csi.VolumeHealthErrorType_DEGRADED, csi.VolumeHealthErrorType_INACCESSIBLE, csi.VolumeHealthErrorType_DATA_LOSS
	for name, tc := range map[string]struct {
		entries []*csi.VolumeHealth_VolumeHealthEntry
		status  healer.Status
		text    string
	}{
		"degraded": {
			entries: []*csi.VolumeHealth_VolumeHealthEntry{entry(degraded, "Slow", "late")},
			status:  healer.Degraded,
			text:    "driver d.example.com says: Slow (late)",
		},
		"the worst wins": {
			entries: []*csi.VolumeHealth_VolumeHealthEntry{
				entry(degraded, "Slow", "late"),
				entry(lost, "Gone", "bad blocks."),
				entry(inaccessible, "Away", "x"),
			},
			status: healer.DataLoss,
			text:   "driver d.example.com says: Gone (bad blocks) and 2 more",
		},
		"later statuses": {
			entries: []*csi.VolumeHealth_VolumeHealthEntry{entry(99, "New", "x"), entry(0, "Unset", "x"), entry(degraded, "Slow", "")},
			status:  healer.Degraded,
			text:    "driver d.example.com says: Slow (no text)",
		},
		"hostile": {
			entries: []*csi.VolumeHealth_VolumeHealthEntry{entry(degraded, "Slow\x1b[2J", "\nkey="+secret+" pool="+parameter+"\u202e")},
			status:  healer.Degraded,
			text:    "driver d.example.com says: Slow [2J (key=the-secret pool=the-parameter)",
		},
		"long": {
			entries: []*csi.VolumeHealth_VolumeHealthEntry{entry(degraded, "Slow", strings.Repeat("ä", 1000))},
			status:  healer.Degraded,
			text:    "driver d.example.com says: Slow (" + strings.Repeat("ä", 78) + "…)",
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFake()
			f.health = func(context.Context) (*csi.VolumeHealth, error) {
				return &csi.VolumeHealth{HealthStatuses: tc.entries}, nil
			}
			e := collect(t, f.serve(t), healthy())
			if e.Opinion == nil || e.Opinion.Reason != healer.DriverReportsAbnormal || e.Opinion.Status != tc.status || e.Opinion.Message != tc.text || e.Opinion.MountPoint != published || e.Opinion.Superblock != disk {
				t.Errorf("%+v", e.Opinion)
			}
		})
	}
}

// volumeConditionOf is a NodeGetVolumeStatsResponse of a driver built with CSI 1.12.
func volumeConditionOf(abnormal uint64, message string) *csi.NodeGetVolumeStatsResponse {
	condition := protowire.AppendVarint(protowire.AppendTag(nil, 1, protowire.VarintType), abnormal)
	condition = protowire.AppendString(protowire.AppendTag(condition, 2, protowire.BytesType), message)
	resp := &csi.NodeGetVolumeStatsResponse{}
	resp.ProtoReflect().SetUnknown(protowire.AppendBytes(protowire.AppendTag(nil, 2, protowire.BytesType), condition))
	return resp
}

func TestOpinionOfOlderDrivers(t *testing.T) {
	for name, tc := range map[string]struct {
		resp *csi.NodeGetVolumeStatsResponse
		text string
	}{
		"normal":       {volumeConditionOf(0, "all well"), ""},
		"abnormal":     {volumeConditionOf(1, "degraded pool"), "driver d.example.com says: degraded pool"},
		"no condition": {&csi.NodeGetVolumeStatsResponse{}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFake()
			f.capabilities = []csi.NodeServiceCapability_RPC_Type{csi.NodeServiceCapability_RPC_GET_VOLUME_STATS, volumeCondition}
			f.stats = func(context.Context) (*csi.NodeGetVolumeStatsResponse, error) { return tc.resp, nil }
			e := collect(t, f.serve(t), healthy())
			switch {
			case e.NotAsked != "" || (e.Opinion == nil) != (tc.text == ""):
				t.Errorf("%+v", e)
			case e.Opinion != nil && (e.Opinion.Message != tc.text || e.Opinion.Status != healer.Degraded):
				t.Errorf("%+v", e.Opinion)
			}
		})
	}
}

// A process that can be seen is asked once who it is; another one is asked again.
func TestProcessIsRemembered(t *testing.T) {
	f := newFake()
	p := f.serve(t)
	pid := 1 << 30
	p.peer = func(net.Conn) int { return pid }
	first, later := []string{"GetPluginInfo", "NodeGetCapabilities", "NodeGetVolumeHealth"}, []string{"NodeGetVolumeHealth"}
	collect(t, p, healthy())
	same(t, "first", f.take(), first)
	collect(t, p, healthy())
	same(t, "later", f.take(), later)
	pid++
	collect(t, p, healthy())
	same(t, "another process", f.take(), first)
}

func TestNoQuestionAboutAVolumeThatHangs(t *testing.T) {
	superblock := func(change func(*healer.Superblock)) func(*healer.Case) {
		return func(c *healer.Case) {
			sb := c.Superblocks[disk]
			change(&sb)
			c.Superblocks = map[facts.Dev]healer.Superblock{disk: sb}
		}
	}
	for name, change := range map[string]func(*healer.Case){
		"no answer":     superblock(func(sb *healer.Superblock) { sb.Answer.TimedOut = true }),
		"not asked":     superblock(func(sb *healer.Superblock) { sb.Answer.Asked = false }),
		"frozen":        superblock(func(sb *healer.Superblock) { sb.Answer.Frozen = true }),
		"a write":       superblock(func(sb *healer.Superblock) { sb.Write.TimedOut = true }),
		"its own mount": func(c *healer.Case) { c.MountPoints[0].Own = facts.Answer{Asked: true, TimedOut: true} },
		"not known":     func(c *healer.Case) { c.Superblocks = nil },
		"in a container": func(c *healer.Case) {
			c.MountPoints[0].InContainer = &healer.InContainer{Probe: facts.ContainerProbe{TimedOut: true}}
		},
		"no driver": func(c *healer.Case) { c.Driver = "" },
		"a path":    func(c *healer.Case) { c.Driver = "../x" },
		"dots":      func(c *healer.Case) { c.Driver = ".." },
	} {
		t.Run(name, func(t *testing.T) {
			f := newFake()
			c := healthy()
			change(&c)
			if e := collect(t, f.serve(t), c); e != (Evidence{}) || len(f.take()) > 0 {
				t.Errorf("%+v", e)
			}
		})
	}
}

// The driver is asked about what is mounted.
func TestLostTargetIsNotAskedAbout(t *testing.T) {
	f := newFake()
	f.health = func(context.Context) (*csi.VolumeHealth, error) {
		return &csi.VolumeHealth{HealthStatuses: []*csi.VolumeHealth_VolumeHealthEntry{entry(csi.VolumeHealthErrorType_DATA_LOSS, "Gone", "x")}}, nil
	}
	c := healthy()
	c.MountPoints[0].Stack = nil
	e := collect(t, f.serve(t), c)
	same(t, "paths", f.paths, []string{"", "/var/lib/kubelet/staged/globalmount"})
	if e.Opinion == nil || e.Opinion.MountPoint != staged {
		t.Errorf("%+v", e)
	}
	c.MountPoints[1].Stack = nil
	if e := collect(t, f.serve(t), c); e.NotAsked != "cannot be asked: nothing is mounted" || e.HealsAt == "" {
		t.Errorf("%+v", e)
	}
}
