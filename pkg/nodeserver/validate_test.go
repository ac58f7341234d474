package nodeserver

import (
	"fmt"
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/csi-addons/node-healer/pkg/api/healerpb"
	"github.com/csi-addons/node-healer/pkg/healer"
)

const canary = "CANARY-do-not-print"

// long returns a path beneath the root of exactly n bytes.
func long(n int) string {
	p := testRoot
	for n-len(p) > maxComponentBytes+1 {
		p += "/" + strings.Repeat("a", 200)
	}
	return p + "/" + strings.Repeat("b", n-len(p)-1)
}

func mapOf(bytes int) map[string]string {
	return map[string]string{"k": strings.Repeat("v", bytes-4), "l": "xy"}
}

func mount(mode csi.VolumeCapability_AccessMode_Mode, fs string, flags ...string) *csi.VolumeCapability {
	return &csi.VolumeCapability{
		AccessMode: &csi.VolumeCapability_AccessMode{Mode: mode},
		AccessType: &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{FsType: fs, MountFlags: flags}},
	}
}

func block(mode csi.VolumeCapability_AccessMode_Mode) *csi.VolumeCapability {
	return &csi.VolumeCapability{
		AccessMode: &csi.VolumeCapability_AccessMode{Mode: mode},
		AccessType: &csi.VolumeCapability_Block{Block: &csi.VolumeCapability_BlockVolume{}},
	}
}

const writer = csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER

type change func(*healerpb.NodeHealerRequest)

func id(s string) change { return func(r *healerpb.NodeHealerRequest) { r.VolumeId = s } }

func at(s string) change { return func(r *healerpb.NodeHealerRequest) { r.VolumePath = s } }

func staging(s string) change {
	return func(r *healerpb.NodeHealerRequest) { r.StagingTargetPath = s }
}

func secrets(m map[string]string) change {
	return func(r *healerpb.NodeHealerRequest) { r.Secrets = m }
}

func volumeContext(m map[string]string) change {
	return func(r *healerpb.NodeHealerRequest) { r.VolumeContext = m }
}

func can(c *csi.VolumeCapability) change {
	return func(r *healerpb.NodeHealerRequest) { r.VolumeCapability = c }
}

const podPath = testRoot + "/pods/1/mount"

var requestRules = map[string]struct {
	change change
	want   string // the start of the error; empty: valid
}{
	"as it is":         {func(*healerpb.NodeHealerRequest) {}, ""},
	"no id":            {id(""), "volume_id: is required"},
	"blank id":         {id(" \t\u00a0"), "volume_id: must not be blank"},
	"id of 1024":       {id(strings.Repeat("x", 1024)), ""},
	"id of 1025":       {id(strings.Repeat("x", 1025)), "volume_id: has 1025 bytes, at most 1024 are allowed"},
	"odd id":           {id("a b^c/../d\n"), ""},
	"no path":          {at(""), "volume_path: is required"},
	"relative":         {at("pods/1"), "volume_path: must be an absolute path"},
	"blank path":       {at(" "), "volume_path: must be an absolute path"},
	"dot dot":          {at(testRoot + "/pods/../pods/1"), "volume_path: must be a clean path"},
	"dot":              {at(testRoot + "/./pods"), "volume_path: must be a clean path"},
	"double slash":     {at(testRoot + "//pods"), "volume_path: must be a clean path"},
	"leading slashes":  {at("/" + podPath), "volume_path: must be a clean path"},
	"final slash":      {at(podPath + "/"), "volume_path: must be a clean path"},
	"final dot dot":    {at(podPath + "/.."), "volume_path: must be a clean path"},
	"dots in a name":   {at(testRoot + "/..a/b..c/..."), ""},
	"path of 4095":     {at(long(4095)), ""},
	"path of 4096":     {at(long(4096)), "volume_path: has 4096 bytes, at most 4095 are allowed"},
	"component of 255": {at(testRoot + "/" + strings.Repeat("c", 255)), ""},
	"component of 256": {
		at(testRoot + "/" + strings.Repeat("c", 256)),
		"volume_path: has a component of 256 bytes, at most 255 are allowed",
	},
	"newline":            {at(podPath + "\nx"), "volume_path: must not contain control characters"},
	"nul":                {at(podPath + "\x00"), "volume_path: must not contain control characters"},
	"delete":             {at(podPath + "\x7f"), "volume_path: must not contain control characters"},
	"c1 control":         {at(podPath + "\u0085"), "volume_path: must not contain control characters"},
	"space and umlaut":   {at(podPath + "/a b/ü"), ""},
	"the root itself":    {at(testRoot), "volume_path: must be beneath the kubelet root or a --path-root"},
	"beside the root":    {at(testRoot + "2/x"), "volume_path: must be beneath"},
	"elsewhere":          {at("/etc/passwd"), "volume_path: must be beneath"},
	"the root directory": {at("/"), "volume_path: must be beneath"},
	"a second root":      {at("/mnt/extra/v"), ""},
	"no staging":         {staging(""), ""},
	"staging relative":   {staging("x"), "staging_target_path: must be an absolute path"},
	"staging unclean":    {staging(podPath + "/."), "staging_target_path: must be a clean path"},
	"staging elsewhere":  {staging("/tmp/x"), "staging_target_path: must be beneath"},
	"staging of 4095":    {staging(long(4095)), ""},
	"staging of 4096":    {staging(long(4096)), "staging_target_path: has 4096 bytes"},
	"staging is the path": {
		func(r *healerpb.NodeHealerRequest) { r.VolumePath, r.StagingTargetPath = podPath, podPath },
		"",
	},
	"path within staging": {
		func(r *healerpb.NodeHealerRequest) { r.VolumePath, r.StagingTargetPath = podPath+"/vol-1", podPath },
		"",
	},
	"secrets of 4096":     {secrets(mapOf(4096)), ""},
	"secrets of 4097":     {secrets(mapOf(4097)), "secrets: has 4097 bytes in keys and values, at most 4096 are allowed"},
	"secret without key":  {secrets(map[string]string{"": canary}), "secrets: must not have an empty key"},
	"secret without text": {secrets(map[string]string{"k": ""}), ""},
	"context of 4096":     {volumeContext(mapOf(4096)), ""},
	"context of 4097":     {volumeContext(mapOf(4097)), "volume_context: has 4097 bytes"},
	"context without key": {volumeContext(map[string]string{"": canary}), "volume_context: must not have an empty key"},

	"capability empty": {can(&csi.VolumeCapability{}), "volume_capability.access_mode: must be a mode"},
	"mode without access": {
		can(&csi.VolumeCapability{AccessMode: &csi.VolumeCapability_AccessMode{Mode: writer}}),
		"volume_capability: must have either mount or block",
	},
	"access without mode": {
		can(&csi.VolumeCapability{AccessType: block(writer).GetAccessType()}),
		"volume_capability.access_mode: must be a mode",
	},
	"mode unknown": {
		can(block(csi.VolumeCapability_AccessMode_UNKNOWN)),
		"volume_capability.access_mode: must be a mode that CSI 1.13 defines, got 0",
	},
	"mode undefined": {can(block(8)), "volume_capability.access_mode: must be a mode that CSI 1.13 defines, got 8"},
	"mode negative": {
		can(mount(-1, "ext4")),
		"volume_capability.access_mode: must be a mode that CSI 1.13 defines, got -1",
	},
	"block":             {can(block(writer)), ""},
	"mount":             {can(mount(writer, "ext4", "noatime")), ""},
	"mount without fs":  {can(mount(writer, "")), ""},
	"fs with a subtype": {can(mount(writer, "fuse.s3-fs_2+x")), ""},
	"fs of 64":          {can(mount(writer, strings.Repeat("f", 64))), ""},
	"fs of 65":          {can(mount(writer, strings.Repeat("f", 65))), "volume_capability.mount.fs_type: must be a plain name"},
	"fs with a slash":   {can(mount(writer, "../ext4")), "volume_capability.mount.fs_type: must be a plain name"},
	"fs with a space":   {can(mount(writer, "ext4 -o x")), "volume_capability.mount.fs_type: must be a plain name"},
	"fs like an option": {can(mount(writer, "-oro")), "volume_capability.mount.fs_type: must be a plain name"},
	"fs not ascii":      {can(mount(writer, "exté")), "volume_capability.mount.fs_type: must be a plain name"},
	"flag with a newline": {
		can(mount(writer, "ext4", "ok", canary+"\n")),
		"volume_capability.mount.mount_flags: must not contain control characters",
	},
	"flags of 4096": {can(mount(writer, "ext4", strings.Repeat("f", 4095), "", "g")), ""},
	"flags of 4097": {
		can(mount(writer, "ext4", strings.Repeat("f", 4095), "gh")),
		"volume_capability.mount.mount_flags: have 4097 bytes",
	},
	"first field wins": {func(r *healerpb.NodeHealerRequest) { r.Reset() }, "volume_id: is required"},
	"path before the rest": {
		func(r *healerpb.NodeHealerRequest) { at("x")(r); staging("x")(r); secrets(mapOf(5000))(r) },
		"volume_path:",
	},
	"staging before the rest": {
		func(r *healerpb.NodeHealerRequest) { staging("x")(r); can(block(0))(r); secrets(mapOf(5000))(r) },
		"staging_target_path:",
	},
	"capability before maps": {
		func(r *healerpb.NodeHealerRequest) { can(block(0))(r); secrets(mapOf(5000))(r) },
		"volume_capability.access_mode:",
	},
	"secrets before context": {
		func(r *healerpb.NodeHealerRequest) { secrets(mapOf(5000))(r); volumeContext(mapOf(5000))(r) },
		"secrets:",
	},
}

func TestRequestRules(t *testing.T) {
	for name, tc := range requestRules {
		t.Run(name, func(t *testing.T) {
			rules, err := newRules([]string{testRoot, "/mnt/extra"}, false)
			if err != nil {
				t.Fatal(err)
			}
			req := goodRequest()
			tc.change(req)
			v, err := rules.volume(req)
			if tc.want == "" {
				if err != nil {
					t.Fatalf("refused: %v", err)
				}
				if v.ID != req.GetVolumeId() || v.Path != req.GetVolumePath() || v.StagingPath != req.GetStagingTargetPath() {
					t.Errorf("volume %+v does not match the request", v)
				}
				return
			}
			if err == nil || !strings.HasPrefix(err.Error(), tc.want) {
				t.Fatalf("got error %v, want %s…", err, tc.want)
			}
			if healer.KindOf(err) != healer.KindInvalid {
				t.Errorf("kind %v, want invalid", healer.KindOf(err))
			}
			if strings.Contains(err.Error(), canary) || len(err.Error()) > 512 || strings.ContainsAny(err.Error(), "\n\x00\x7f") {
				t.Errorf("error says too much: %q", err)
			}
		})
	}
}

func TestCapabilityMeaning(t *testing.T) {
	for name, tc := range map[string]struct {
		in   *csi.VolumeCapability
		want *healer.Capability
	}{
		"none":             {nil, nil},
		"writer":           {mount(writer, "xfs", "noatime"), &healer.Capability{AccessMode: "SINGLE_NODE_WRITER", Access: healer.AccessMount, FSType: "xfs"}},
		"block":            {block(writer), &healer.Capability{AccessMode: "SINGLE_NODE_WRITER", Access: healer.AccessBlock}},
		"node reader":      {block(csi.VolumeCapability_AccessMode_SINGLE_NODE_READER_ONLY), &healer.Capability{AccessMode: "SINGLE_NODE_READER_ONLY", Access: healer.AccessBlock, ReadOnly: true}},
		"many readers":     {mount(csi.VolumeCapability_AccessMode_MULTI_NODE_READER_ONLY, ""), &healer.Capability{AccessMode: "MULTI_NODE_READER_ONLY", Access: healer.AccessMount, ReadOnly: true}},
		"flag ro":          {mount(writer, "", "ro"), &healer.Capability{AccessMode: "SINGLE_NODE_WRITER", Access: healer.AccessMount, ReadOnly: true}},
		"flag among flags": {mount(writer, "", "noatime,ro"), &healer.Capability{AccessMode: "SINGLE_NODE_WRITER", Access: healer.AccessMount, ReadOnly: true}},
		"no such flag":     {mount(writer, "", "errors=remount-ro", "rootcontext=ro_t"), &healer.Capability{AccessMode: "SINGLE_NODE_WRITER", Access: healer.AccessMount}},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := capability(tc.in)
			if err != nil {
				t.Fatal(err)
			}
			if fmt.Sprintf("%+v", got) != fmt.Sprintf("%+v", tc.want) {
				t.Errorf("got %+v, want %+v", got, tc.want)
			}
		})
	}
}

func TestRootRules(t *testing.T) {
	for _, bad := range [][]string{nil, {}, {"/"}, {""}, {"relative"}, {"/a/"}, {"/a/../b"}, {"/ok", "bad"}} {
		if _, err := newRules(bad, false); err == nil {
			t.Errorf("roots %q were accepted", bad)
		}
	}
}

func TestRefusedRequestReachesNobody(t *testing.T) {
	h := &fakeHealer{}
	s := serve(t, testConfig(h))
	req := goodRequest()
	req.VolumePath = "/etc/shadow"
	_, err := s.healer().NodeHealer(testContext(t), req)
	if status.Code(err) != codes.InvalidArgument || !strings.Contains(status.Convert(err).Message(), `volume_path: must be beneath`) {
		t.Errorf("got %v", err)
	}
	if len(h.volumes()) != 0 {
		t.Error("the healer was asked")
	}
}

// In a cluster nothing that a caller says of how a volume is used goes further than the
// comparison with what is mounted.
func TestRequestBecomesVolume(t *testing.T) {
	for name, standalone := range map[string]bool{"standalone": true, "in a cluster": false} {
		t.Run(name, func(t *testing.T) {
			h := &fakeHealer{}
			cfg := testConfig(h)
			cfg.Standalone = standalone
			s := serve(t, cfg)
			req := goodRequest()
			req.VolumeCapability = mount(writer, "ext4", "ro")
			req.VolumeCapability.GetMount().VolumeMountGroup = "7"
			req.Secrets = map[string]string{"user": "u"}
			req.VolumeContext = map[string]string{"pool": "p"}
			if _, err := s.healer().NodeHealer(testContext(t), req); err != nil {
				t.Fatal(err)
			}
			got := h.volumes()
			if len(got) != 1 || *got[0].Capability != (healer.Capability{AccessMode: "SINGLE_NODE_WRITER", Access: healer.AccessMount, ReadOnly: true, FSType: "ext4"}) {
				t.Fatalf("the healer was asked for %+v", got)
			}
			v := got[0]
			if standalone && (v.Secrets["user"] != "u" || v.Context["pool"] != "p" || len(v.MountFlags) != 1 || v.MountGroup != "7") ||
				!standalone && len(v.Secrets)+len(v.Context)+len(v.MountFlags)+len(v.MountGroup) > 0 {
				t.Errorf("%d secrets, %d of volume_context, %d flags, group %q", len(v.Secrets), len(v.Context), len(v.MountFlags), v.MountGroup)
			}
		})
	}
}
