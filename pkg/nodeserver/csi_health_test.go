package nodeserver

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/csi-addons/node-healer/pkg/healer"
)

func TestVolumeHealthIsAnAnswer(t *testing.T) {
	h := &fakeHealer{}
	s := serve(t, testConfig(h))
	resp, err := s.node().NodeGetVolumeHealth(testContext(t), healthOf("v", pathA, ""))
	if v := resp.GetVolumeHealth(); err != nil || v.GetVolumeId() != "v" || len(v.GetHealthStatuses()) != 0 {
		t.Errorf("healthy: got %v, %v", resp, err)
	}
	h.next(healer.Report{After: healer.Diagnosis{Conditions: []healer.Condition{
		{Status: healer.Inaccessible, Reason: healer.NotMounted, MountPoint: pathA, Message: "nothing is mounted"},
	}}}, nil, nil)
	resp, err = s.node().NodeGetVolumeHealth(testContext(t), healthOf("v", pathA, ""))
	found := resp.GetVolumeHealth().GetHealthStatuses()
	if err != nil || len(found) != 1 || found[0].GetStatus() != csi.VolumeHealthErrorType_INACCESSIBLE ||
		found[0].GetReason() != "NotMounted" || found[0].GetMessage() != "nothing is mounted" {
		t.Errorf("sick: got %v, %v", resp, err)
	}
	if len(h.volumes()) != 0 {
		t.Error("the healer was asked to heal")
	}
}

func TestHealthEntries(t *testing.T) {
	both := healer.Case{MountPoints: []healer.MountPoint{publishedAt("/p", 0), stagedAt("/s"), publishedAt("/q", 0)}}
	condition := func(s healer.Status, r healer.Reason, mountPoint, message string) healer.Condition {
		return healer.Condition{Status: s, Reason: r, MountPoint: mountPoint, Message: message}
	}
	for name, tc := range map[string]struct {
		d    healer.Diagnosis
		want []string
	}{
		"nothing": {healer.Diagnosis{Case: both}, nil},
		"each status": {healer.Diagnosis{Case: both, Conditions: []healer.Condition{
			condition(healer.Degraded, healer.PathsFailed, "/p", "1 of 2"),
			condition(healer.Inaccessible, healer.IOError, "/s", "EIO"),
			condition(healer.DataLoss, "ReplicaLost", "/p", "no copy is left"),
			condition("Odd", "Odd", "/p", "?"),
		}}, []string{
			"DATA_LOSS ReplicaLost target: no copy is left",
			"INACCESSIBLE IOError staging mount point: EIO", "DEGRADED PathsFailed target: 1 of 2",
			"UNKNOWN_VOLUME_HEALTH_TYPE Odd target: ?",
		}},
		"one reason at several mount points": {healer.Diagnosis{Case: both, Conditions: []healer.Condition{
			condition(healer.Inaccessible, healer.IOError, "/s", "EIO"),
			condition(healer.Inaccessible, healer.IOError, "/q", "EIO"),
			condition(healer.Inaccessible, healer.IOError, "/p", "EIO at a mount point of the request"),
		}}, []string{"INACCESSIBLE IOError target: EIO at a mount point of the request"}},
		"one reason twice at a mount point": {healer.Diagnosis{Case: both, Conditions: []healer.Condition{
			condition(healer.Inaccessible, healer.IOError, "/s", "one provider says"),
			condition(healer.Inaccessible, healer.IOError, "/s", "so says another"),
		}}, []string{"INACCESSIBLE IOError staging mount point: one provider says"}},
		"one reason, two statuses": {healer.Diagnosis{Case: both, Conditions: []healer.Condition{
			condition(healer.Degraded, healer.DeviceMissing, "/s", "1 device"),
			condition(healer.Inaccessible, healer.DeviceMissing, "/s", "sdb"),
		}}, []string{"INACCESSIBLE DeviceMissing staging mount point: sdb", "DEGRADED DeviceMissing staging mount point: 1 device"}},
		"at no mount point": {healer.Diagnosis{Case: both, Conditions: []healer.Condition{
			condition(healer.Inaccessible, healer.IOError, "", "the pool is gone"),
		}}, []string{"INACCESSIBLE IOError the pool is gone"}},
		"a provider failed": {healer.Diagnosis{Case: both, Failures: []healer.ProviderFailure{
			{Provider: "ceph", Err: errors.New("no monitor")}, {Provider: "csi", Err: errors.New("x")},
		}}, []string{"UNKNOWN_VOLUME_HEALTH_TYPE ProviderFailed provider ceph: no monitor"}},
		"a provider failed, and another did not": {healer.Diagnosis{
			Case:       both,
			Conditions: []healer.Condition{condition(healer.Inaccessible, healer.IOError, "/p", "EIO")},
			Failures:   []healer.ProviderFailure{{Provider: "ceph"}},
		}, []string{"INACCESSIBLE IOError target: EIO", "UNKNOWN_VOLUME_HEALTH_TYPE ProviderFailed provider ceph: no reason given"}},
	} {
		t.Run(name, func(t *testing.T) {
			var got []string
			for _, e := range healthEntries(tc.d) {
				got = append(got, fmt.Sprintf("%s %s %s", e.GetStatus(), e.GetReason(), e.GetMessage()))
			}
			if strings.Join(got, "\n") != strings.Join(tc.want, "\n") {
				t.Errorf("got  %q\nwant %q", got, tc.want)
			}
		})
	}
}

// FuzzHealthEntries holds the answers to what CSI demands of them: no status and
// reason twice, no string that is too long.
func FuzzHealthEntries(f *testing.F) {
	f.Add("NotMounted", "IOError", "évidence", "/p", uint8(3))
	f.Add("", strings.Repeat("R", 300), strings.Repeat("\U0001F600\x00", 200), "", uint8(200))
	f.Fuzz(func(t *testing.T, a, b, message, mountPoint string, n uint8) {
		var d healer.Diagnosis
		for i := range int(n) {
			at := mountPoint + fmt.Sprint(i%5)
			d.Case.MountPoints = append(d.Case.MountPoints, publishedAt(at, 0))
			reason := healer.Reason([]string{a, b, "IOError"}[i%3])
			d.Conditions = append(d.Conditions, healer.Condition{Status: healer.Status([]string{"Degraded", "Inaccessible"}[i%2]), Reason: reason, MountPoint: at, Message: message})
		}
		if n > 100 {
			d.Failures = []healer.ProviderFailure{{Provider: a, Err: errors.New(message)}, {}}
		}
		seen := map[string]bool{}
		for _, e := range healthEntries(d) {
			key := e.GetStatus().String() + " " + e.GetReason()
			if seen[key] {
				t.Errorf("%q twice", key)
			}
			seen[key] = true
			for _, s := range []string{e.GetReason(), e.GetMessage()} {
				if len(s) > 128 || !utf8.ValidString(s) {
					t.Errorf("%d bytes: %q", len(s), s)
				}
			}
		}
		if len(seen) == 0 && !d.Healthy() {
			t.Error("a sick volume without an entry")
		}
	})
}

// askedAt is a healer that knows volumes at some paths only.
type askedAt struct {
	fakeHealer

	known map[string]healer.Report
}

func (h *askedAt) Check(ctx context.Context, v healer.Volume) (healer.Report, error) {
	if _, err := h.fakeHealer.Check(ctx, v); err != nil {
		return healer.Report{}, err
	}
	r, known := h.known[v.Path]
	if !known {
		return r, healer.NotFound("volume_path: %s does not exist on this node", v.Path)
	}
	return r, nil
}

func TestWhereHealthIsLookedFor(t *testing.T) {
	for name, tc := range map[string]struct {
		req   *csi.NodeGetVolumeHealthRequest
		known []string
		want  []string // the paths asked for
		code  codes.Code
		says  string
		// unlisted is true while not all volumes are listed.
		unlisted bool
	}{
		"target":                           {req: healthOf("v", pathA, pathS), known: []string{pathA, pathS}, want: []string{pathA}},
		"staged only":                      {req: healthOf("v", "", pathS), known: []string{pathS}, want: []string{pathS}},
		"it could not be published":        {req: healthOf("v", pathA, pathS), known: []string{pathS}, want: []string{pathA, pathS}},
		"it is at neither":                 {req: healthOf("v", pathA, pathS), want: []string{pathA, pathS}, code: codes.NotFound, says: pathA},
		"not where it was to be published": {req: healthOf("v", pathA, ""), want: []string{pathA}, code: codes.NotFound, says: pathA},
		"not staged":                       {req: healthOf("v", "", pathS), want: []string{pathS}, code: codes.NotFound, says: pathS},
		"both are one":                     {req: healthOf("v", pathS, pathS), want: []string{pathS}, code: codes.NotFound, says: pathS},
		"by its ID":                        {req: healthOf("found", "", ""), known: []string{pathA}, want: []string{pathA}},
		"by its ID, and mounted elsewhere": {req: healthOf("both", "", ""), known: []string{pathA, pathS}, want: []string{pathS}},
		"another driver's ID":              {req: healthOf("theirs", "", ""), code: codes.NotFound, says: "volume_id: kubelet has no such volume"},
		"an ID of nothing":                 {req: healthOf("v", "", ""), code: codes.NotFound, says: "volume_id: kubelet has no such volume"},
		"an ID of what just went":          {req: healthOf("found", "", ""), want: []string{pathA}, code: codes.NotFound, says: pathA},
		"an ID that may be unlisted":       {req: healthOf("v", "", ""), unlisted: true, code: codes.Unknown, says: "find the volume: "},
		"an ID that is listed":             {req: healthOf("found", "", ""), unlisted: true, known: []string{pathA}, want: []string{pathA}},
	} {
		t.Run(name, func(t *testing.T) {
			h := &askedAt{known: map[string]healer.Report{}}
			for _, p := range tc.known {
				h.known[p] = healer.Report{}
			}
			cfg := testConfig(h)
			cfg.Driver = "healer.example.com"
			listed := fakeVolumes{
				volumeAt(cfg.Driver, "found", pathA, false), volumeAt(cfg.Driver, "both", pathA, false),
				volumeAt(cfg.Driver, "both", pathS, true), volumeAt("other.example.com", "theirs", pathA, false),
			}
			listed[2].Mounted = true
			if cfg.Volumes = listed; tc.unlisted {
				cfg.Volumes = partlyListed{listed}
			}
			s := serve(t, cfg)
			resp, err := s.node().NodeGetVolumeHealth(testContext(t), tc.req)
			if status.Code(err) != tc.code || !strings.Contains(status.Convert(err).Message(), tc.says) {
				t.Errorf("got %v, want %v with %q", err, tc.code, tc.says)
			}
			if err == nil && resp.GetVolumeHealth().GetVolumeId() != tc.req.GetVolumeId() {
				t.Errorf("got %v", resp)
			}
			var asked []string
			for _, v := range h.checks() {
				asked = append(asked, v.Path)
			}
			if strings.Join(asked, " ") != strings.Join(tc.want, " ") {
				t.Errorf("asked at %q, want %q", asked, tc.want)
			}
		})
	}
}

// TestHealthByIDNeedsOneDriver: two drivers may have volumes of one ID.
func TestHealthByIDNeedsOneDriver(t *testing.T) {
	for name, change := range map[string]func(*Config){
		"no list":       func(c *Config) { c.Driver = "csi.example.com" },
		"of any driver": func(c *Config) { c.Volumes = fakeVolumes{volumeAt("d", "v", pathA, false)} },
	} {
		cfg := testConfig(&fakeHealer{})
		change(&cfg)
		s := serve(t, cfg)
		_, err := s.node().NodeGetVolumeHealth(testContext(t), healthOf("v", "", ""))
		if status.Code(err) != codes.InvalidArgument || !strings.HasPrefix(status.Convert(err).Message(), "volume_publish_path: is required") {
			t.Errorf("%s: got %v", name, err)
		}
	}
}
