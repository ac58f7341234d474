package nodeserver

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/csi-addons/node-healer/pkg/healer"
	"github.com/csi-addons/node-healer/pkg/healer/provider/network"
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
	unresponsive, gone := ill(healer.Inaccessible, healer.NotResponding), ill(healer.Inaccessible, healer.Disconnected)
	full, slow := ill(healer.Degraded, healer.OutOfSpace), ill(healer.Degraded, healer.SlowResponse)
	for name, tc := range map[string]struct {
		seen []healer.Report
		want []string
	}{
		"no volume":               {nil, nil},
		"all is well":             {[]healer.Report{seenOn("d", "nfs4", "srv:/a", 1), seenOn("d", "nfs4", "srv:/b", 1)}, nil},
		"one volume is no others": {[]healer.Report{seenOn("d", "nfs4", "srv:/a", 1, unresponsive), seenOn("d", "nfs4", "two:/b", 2, unresponsive)}, nil},
		"a server": {
			[]healer.Report{seenOn("d", "nfs4", "srv:/a", 1, unresponsive), seenOn("e", "nfs", "srv:/b", 2, unresponsive)},
			[]string{"STORAGE_UNREACHABLE NotResponding 2 of 2 volumes on server srv"},
		},
		"a server that some still reach": {
			[]healer.Report{seenOn("d", "nfs4", "srv:/a", 1, unresponsive), seenOn("d", "nfs4", "srv:/b", 2, unresponsive), seenOn("d", "nfs4", "srv:/c", 3)},
			[]string{"STORAGE_DEGRADED NotResponding 2 of 3 volumes on server srv"},
		},
		"a server that is slow": {
			[]healer.Report{seenOn("d", "cifs", "//srv/a", 1, slow), seenOn("d", "cifs", "//srv/b", 2, slow)},
			[]string{"STORAGE_DEGRADED SlowResponse 2 of 2 volumes on server srv"},
		},
		"two servers": {
			[]healer.Report{
				seenOn("d", "nfs4", "one:/a", 1, unresponsive), seenOn("d", "nfs4", "one:/b", 1, unresponsive),
				seenOn("d", "nfs4", "two:/a", 2, unresponsive), seenOn("d", "nfs4", "two:/b", 2, unresponsive), seenOn("d", "nfs4", "two:/c", 2, unresponsive),
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
		"daemons of two drivers":          {[]healer.Report{seenOn("d", "fuse.x", "x", 1, gone), seenOn("e", "fuse.x", "x", 2, gone)}, nil},
		"two daemons that do not respond": {[]healer.Report{seenOn("d", "fuse.x", "x", 1, unresponsive), seenOn("d", "fuse.x", "x", 2, unresponsive)}, nil},
		"two disks that are no matter":    {[]healer.Report{seenOn("d", "ext4", "/dev/a", 1, unresponsive), seenOn("d", "ext4", "/dev/b", 2, unresponsive)}, nil},
		"one daemon with two volumes": {
			[]healer.Report{seenOn("d", "fuse.x", "x", 1, unresponsive), seenOn("e", "fuse.x", "x", 1, unresponsive)},
			[]string{"STORAGE_UNREACHABLE NotResponding 2 of 2 volumes on filesystem fuse.x 0:1"},
		},
		"how they are mounted": {
			[]healer.Report{
				seenOn("d", "nfs4", "srv:/a", 1, ill(healer.Inaccessible, healer.WrongVolumeMounted), ill(healer.Inaccessible, healer.ReadOnlyFilesystem)),
				seenOn("d", "nfs4", "srv:/b", 1, ill(healer.Inaccessible, healer.WrongVolumeMounted), ill(healer.Inaccessible, healer.ReadOnlyFilesystem)),
			}, nil,
		},
		"each in another way": {[]healer.Report{seenOn("d", "nfs4", "srv:/a", 1, unresponsive), seenOn("d", "nfs4", "srv:/b", 1, slow)}, nil},
		"data that is lost": {
			[]healer.Report{seenOn("d", "nfs4", "srv:/a", 1, ill(healer.DataLoss, "ReplicaLost")), seenOn("d", "nfs4", "srv:/b", 1, ill(healer.DataLoss, "ReplicaLost"))},
			[]string{"STORAGE_DEGRADED ReplicaLost 2 of 2 volumes on server srv"}, // it answers
		},
		"the worst first": {
			[]healer.Report{
				seenOn("d", "nfs4", "one:/a", 1, slow), seenOn("d", "nfs4", "one:/b", 1, slow),
				seenOn("d", "nfs4", "two:/a", 2, unresponsive), seenOn("d", "nfs4", "two:/b", 2, unresponsive),
			},
			[]string{"STORAGE_UNREACHABLE NotResponding 2 of 2 volumes on server two", "STORAGE_DEGRADED SlowResponse 2 of 2 volumes on server one"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			var volumes [][]network.Health
			for _, r := range tc.seen {
				volumes = append(volumes, network.Of(r))
			}
			var got []string
			for _, e := range storageEntries(network.SharedTroubles(volumes)) {
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
	if got := network.SharedTroubles([][]network.Health{network.Of(r), network.Of(r)}); len(got) != 1 || got[0].Reason != healer.IOError {
		t.Errorf("got %v", got)
	}
	r.After.Conditions[0].MountPoint = "/elsewhere"
	if got := network.SharedTroubles([][]network.Health{network.Of(r), network.Of(r)}); len(got) != 0 {
		t.Errorf("of another mount point: %v", got)
	}
}

// NodeGetStorageHealth answers from the calls of the last minutes, and makes none.
func TestStorageHealthOfWhatWasAsked(t *testing.T) {
	unresponsive := ill(healer.Inaccessible, healer.NotResponding)
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
	ask("a", seenOn("d", "nfs4", "srv:/a", 1, unresponsive), nil, true)
	ask("b", seenOn("d", "nfs4", "srv:/b", 1, unresponsive), healer.Failed("look", nil), false)
	if got := storage(); len(got) != 0 {
		t.Errorf("of one volume: %v", got)
	}
	ask("a", seenOn("d", "nfs4", "srv:/a", 1, unresponsive), nil, false)
	if got := storage(); len(got) != 0 {
		t.Errorf("one volume counts twice: %v", got)
	}
	said := seenOn("d", "nfs4", "srv:/b", 1, unresponsive)
	said.After.Case.MountPoints[0].Proven = false
	ask("b", said, nil, false)
	ask("b", said, nil, true)
	if got := storage(); len(got) != 0 {
		t.Errorf("the caller's word counts: %v", got)
	}
	ask("b", seenOn("d", "nfs4", "srv:/b", 1, unresponsive), nil, false)
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

func TestRecentReportsEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRecentReports()
		r.add(volumeKey{"d", "old"}, nil)
		time.Sleep(2 * time.Second)
		r.add(volumeKey{"d", "new"}, nil)
		time.Sleep(recentFor - time.Second)
		if got := r.backends(); len(got) != 1 {
			t.Errorf("got %v", got)
		}
		for i := range maxRecentReports + 10 {
			r.add(volumeKey{"d", fmt.Sprint(i)}, nil)
		}
		if n := len(r.backends()); n != maxRecentReports {
			t.Errorf("%d are kept", n)
		}
		for _, id := range []string{"new", "0", "8"} {
			if _, kept := r.byVolume.Get(volumeKey{"d", id}); kept {
				t.Errorf("%s is older than others, and is kept", id)
			}
		}
	})
}
