package nodeserver

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/csi-addons/node-healer/pkg/healer"
	"github.com/csi-addons/node-healer/pkg/host"
)

// seenOn is one volume on one superblock, as it was seen.
func seenOn(driver, fsType, source string, minor uint32, conditions ...healer.Condition) healer.Report {
	d := seenAs(host.Superblock{Dev: host.Dev{Minor: minor}, FSType: fsType, Source: source, Kind: host.KindDirectory})
	for _, c := range conditions {
		c.MountPoint = pathA
		d.Conditions = append(d.Conditions, c)
	}
	return healer.Report{Driver: driver, After: d}
}

func ill(s healer.Status, r healer.Reason) healer.Condition {
	return healer.Condition{Status: s, Reason: r, Message: "evidence"}
}

func TestStorageHealth(t *testing.T) {
	silent, gone := ill(healer.Inaccessible, healer.NotResponding), ill(healer.Inaccessible, healer.Disconnected)
	full, slow := ill(healer.Degraded, healer.OutOfSpace), ill(healer.Degraded, healer.SlowResponse)
	for name, tc := range map[string]struct {
		seen []healer.Report
		want []string
	}{
		"nothing was seen":        {nil, nil},
		"all is well":             {[]healer.Report{seenOn("d", "nfs4", "srv:/a", 1), seenOn("d", "nfs4", "srv:/b", 1)}, nil},
		"one volume is no others": {[]healer.Report{seenOn("d", "nfs4", "srv:/a", 1, silent), seenOn("d", "nfs4", "two:/b", 2, silent)}, nil},
		"a server": {
			[]healer.Report{seenOn("d", "nfs4", "srv:/a", 1, silent), seenOn("e", "nfs", "srv:/b", 2, silent)},
			[]string{"STORAGE_UNREACHABLE NotResponding 2 of 2 volumes on server srv"},
		},
		"a server that some still reach": {
			[]healer.Report{seenOn("d", "nfs4", "srv:/a", 1, silent), seenOn("d", "nfs4", "srv:/b", 2, silent), seenOn("d", "nfs4", "srv:/c", 3)},
			[]string{"STORAGE_DEGRADED NotResponding 2 of 3 volumes on server srv"},
		},
		"a server that is slow": {
			[]healer.Report{seenOn("d", "cifs", "//srv/a", 1, slow), seenOn("d", "cifs", "//srv/b", 2, slow)},
			[]string{"STORAGE_DEGRADED SlowResponse 2 of 2 volumes on server srv"},
		},
		"two servers": {
			[]healer.Report{
				seenOn("d", "nfs4", "one:/a", 1, silent), seenOn("d", "nfs4", "one:/b", 1, silent),
				seenOn("d", "nfs4", "two:/a", 2, silent), seenOn("d", "nfs4", "two:/b", 2, silent), seenOn("d", "nfs4", "two:/c", 2, silent),
			},
			[]string{"STORAGE_UNREACHABLE NotResponding 3 of 3 volumes on server two (2 backends)"},
		},
		"two exports that are full": {[]healer.Report{seenOn("d", "nfs4", "srv:/a", 1, full), seenOn("d", "nfs4", "srv:/b", 2, full)}, nil},
		"one export that is full": {
			[]healer.Report{seenOn("d", "nfs4", "srv:/a", 1, full), seenOn("d", "nfs4", "srv:/a", 1, full)},
			[]string{"STORAGE_DEGRADED OutOfSpace 2 of 2 volumes on filesystem nfs4 0:1"},
		},
		"daemons that are gone": {
			[]healer.Report{seenOn("d", "fuse.x", "x", 1, gone), seenOn("d", "fuse.x", "x", 2, gone)},
			[]string{"STORAGE_UNREACHABLE Disconnected 2 of 2 volumes on FUSE daemons fuse.x of driver d"},
		},
		"daemons of two drivers":       {[]healer.Report{seenOn("d", "fuse.x", "x", 1, gone), seenOn("e", "fuse.x", "x", 2, gone)}, nil},
		"two daemons that are silent":  {[]healer.Report{seenOn("d", "fuse.x", "x", 1, silent), seenOn("d", "fuse.x", "x", 2, silent)}, nil},
		"two disks that are no matter": {[]healer.Report{seenOn("d", "ext4", "/dev/a", 1, silent), seenOn("d", "ext4", "/dev/b", 2, silent)}, nil},
		"one daemon with two volumes": {
			[]healer.Report{seenOn("d", "fuse.x", "x", 1, silent), seenOn("e", "fuse.x", "x", 1, silent)},
			[]string{"STORAGE_UNREACHABLE NotResponding 2 of 2 volumes on filesystem fuse.x 0:1"},
		},
		"how they are mounted": {
			[]healer.Report{
				seenOn("d", "nfs4", "srv:/a", 1, ill(healer.Inaccessible, healer.WrongVolumeMounted), ill(healer.Inaccessible, healer.ReadOnlyFilesystem)),
				seenOn("d", "nfs4", "srv:/b", 1, ill(healer.Inaccessible, healer.WrongVolumeMounted), ill(healer.Inaccessible, healer.ReadOnlyFilesystem)),
			}, nil,
		},
		"each in another way": {[]healer.Report{seenOn("d", "nfs4", "srv:/a", 1, silent), seenOn("d", "nfs4", "srv:/b", 1, slow)}, nil},
		"data that is lost": {
			[]healer.Report{seenOn("d", "nfs4", "srv:/a", 1, ill(healer.DataLoss, "ReplicaLost")), seenOn("d", "nfs4", "srv:/b", 1, ill(healer.DataLoss, "ReplicaLost"))},
			[]string{"STORAGE_DEGRADED ReplicaLost 2 of 2 volumes on server srv"}, // it answers
		},
		"the worst first": {
			[]healer.Report{
				seenOn("d", "nfs4", "one:/a", 1, slow), seenOn("d", "nfs4", "one:/b", 1, slow),
				seenOn("d", "nfs4", "two:/a", 2, silent), seenOn("d", "nfs4", "two:/b", 2, silent),
			},
			[]string{"STORAGE_UNREACHABLE NotResponding 2 of 2 volumes on server two", "STORAGE_DEGRADED SlowResponse 2 of 2 volumes on server one"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			var seen []recentReport
			for _, r := range tc.seen {
				seen = append(seen, recentReport{backends: backendsOf(r)})
			}
			var got []string
			for _, e := range storageHealth(seen) {
				got = append(got, fmt.Sprintf("%s %s %s", e.GetStatus(), e.GetReason(), e.GetMessage()))
				if len(e.GetMessage()) > maxCSIStringBytes {
					t.Errorf("%d bytes: %s", len(e.GetMessage()), e.GetMessage())
				}
			}
			if strings.Join(got, "\n") != strings.Join(tc.want, "\n") {
				t.Errorf("got  %q\nwant %q", got, tc.want)
			}
		})
	}
}

// A condition at no mount point is one of all that the volume lies on.
func TestTroubleAtNoMountPoint(t *testing.T) {
	r := seenOn("d", "nfs4", "srv:/a", 1)
	r.After.Conditions = []healer.Condition{ill(healer.Inaccessible, healer.IOError)}
	two := []recentReport{{backends: backendsOf(r)}, {backends: backendsOf(r)}}
	if got := storageHealth(two); len(got) != 1 || got[0].GetReason() != "IOError" {
		t.Errorf("got %v", got)
	}
	r.After.Conditions[0].MountPoint = "/elsewhere"
	two = []recentReport{{backends: backendsOf(r)}, {backends: backendsOf(r)}}
	if got := storageHealth(two); len(got) != 0 {
		t.Errorf("of another mount point: %v", got)
	}
}

func TestServerOf(t *testing.T) {
	for _, tc := range [][3]string{
		{"nfs", "10.0.0.1:/export/a", "10.0.0.1"},
		{"nfs4", "[fd00::1]:/export", "[fd00::1]"},
		{"nfs4", "srv:/", "srv"},
		{"nfs4", "odd", ""},
		{"cifs", "//srv.example.com/share/dir", "srv.example.com"},
		{"smb3", "//srv", "srv"},
		{"ceph", "mon1:6789,mon2:6789:/volumes/a:/b", "mon1:6789,mon2:6789"},
		{"ceph", "admin@b3acfc0d-575f.cephfs=/volumes/a", "b3acfc0d-575f.cephfs"},
		{"ceph", "", ""},
		{"ext4", "srv:/a", ""},
		{"fuse.sshfs", "srv:/a", ""},
	} {
		if got := serverOf(tc[0], tc[1]); got != tc[2] {
			t.Errorf("%s %s: got %q, want %q", tc[0], tc[1], got, tc[2])
		}
	}
}

// NodeGetStorageHealth tells of whatever calls were about, and asks nobody.
func TestStorageHealthOfWhatWasAsked(t *testing.T) {
	silent := ill(healer.Inaccessible, healer.NotResponding)
	h := &fakeHealer{}
	s := serve(t, testConfig(h))
	storage := func() []*csi.NodeGetStorageHealthResponse_StorageBackendHealth {
		t.Helper()
		asked := len(h.volumes()) + len(h.checks())
		resp, err := s.node().NodeGetStorageHealth(testContext(t), &csi.NodeGetStorageHealthRequest{Secrets: map[string]string{"k": "v"}})
		if err != nil || len(h.volumes())+len(h.checks()) != asked {
			t.Errorf("got %v, asked for %v %v", err, h.volumes(), h.checks())
		}
		return resp.GetBackendHealth()
	}
	ask := func(id string, r healer.Report, err error, heal bool) {
		t.Helper()
		h.next(r, err, nil)
		var got error
		if heal {
			req := goodRequest()
			req.VolumeId = id
			_, got = s.healer().NodeHealer(testContext(t), req)
		} else {
			_, got = s.node().NodeGetVolumeHealth(testContext(t), healthOf(id, pathA, ""))
		}
		if (got == nil) != (err == nil) {
			t.Error(got)
		}
	}
	ask("a", seenOn("d", "nfs4", "srv:/a", 1, silent), nil, true)
	ask("b", seenOn("d", "nfs4", "srv:/b", 1, silent), healer.Failed("look", nil), false)
	if got := storage(); len(got) != 0 {
		t.Errorf("of one volume: %v", got)
	}
	ask("a", seenOn("d", "nfs4", "srv:/a", 1, silent), nil, false)
	if got := storage(); len(got) != 0 {
		t.Errorf("one volume counts twice: %v", got)
	}
	said := seenOn("d", "nfs4", "srv:/b", 1, silent)
	said.After.Case.MountPoints[0].Proven = false
	ask("b", said, nil, false)
	ask("b", said, nil, true)
	if got := storage(); len(got) != 0 {
		t.Errorf("the caller's word counts: %v", got)
	}
	ask("b", seenOn("d", "nfs4", "srv:/b", 1, silent), nil, false)
	if got := storage(); len(got) != 1 || got[0].GetReason() != "NotResponding" || got[0].GetVolumeCapability() != nil {
		t.Errorf("of two: %v", got)
	}
	ask("b", seenOn("d", "nfs4", "srv:/b", 1), nil, false)
	if got := storage(); len(got) != 0 {
		t.Errorf("one is well again: %v", got)
	}
	_, err := s.node().NodeGetStorageHealth(testContext(t), &csi.NodeGetStorageHealthRequest{Secrets: mapOf(maxMapBytes + 1)})
	if status.Code(err) != codes.InvalidArgument {
		t.Errorf("large secrets: %v", err)
	}
}

func TestSightingsEnd(t *testing.T) {
	var s recentReports
	now := time.Now()
	s.note(recentReportKey{"d", "old"}, recentReport{at: now.Add(-lately - time.Second)})
	s.note(recentReportKey{"d", "new"}, recentReport{at: now.Add(-lately)})
	if got := s.lately(now); len(got) != 1 || len(s.by) != 1 {
		t.Errorf("got %v, kept %v", got, s.by)
	}
	for i := range maxRecentReports + 10 {
		s.note(recentReportKey{"d", fmt.Sprint(i)}, recentReport{at: now.Add(time.Duration(i))})
	}
	if len(s.by) != maxRecentReports {
		t.Errorf("%d are kept", len(s.by))
	}
	for _, id := range []string{"new", "0", "8"} {
		if _, kept := s.by[recentReportKey{"d", id}]; kept {
			t.Errorf("%s is older than others, and is kept", id)
		}
	}
	if _, kept := s.by[recentReportKey{"d", fmt.Sprint(maxRecentReports + 9)}]; !kept {
		t.Error("the last one is gone")
	}
}

func TestWitnessGivesWhatItSaw(t *testing.T) {
	var seen recentReports
	failed := healer.Failed("x", nil)
	w := recorder{&fakeHealer{report: seenOn("d", "nfs4", "srv:/a", 1), err: failed}, &seen}
	for _, call := range []func(context.Context, healer.Volume) (healer.Report, error){w.Heal, w.Check} {
		if r, err := call(testContext(t), healer.Volume{ID: "v"}); err != failed || r.Driver != "d" { //nolint:errorlint // the very same
			t.Errorf("got %v, %v", r, err)
		}
	}
	if len(seen.by) != 0 {
		t.Errorf("an error was taken for a sighting: %v", seen.by)
	}
}
