package main

import (
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/csi-addons/node-healer/pkg/api/adminpb"
)

func at(second int) *timestamppb.Timestamp {
	return timestamppb.New(time.Date(2026, 1, 2, 3, 4, second, 0, time.UTC))
}

var listPrintsExamples = map[string]string{
	asTable: `
DRIVER          VOLUME-ID   PV      POD             PUBLISHED   STAGED   HEALTH
a.example.com   vol-1       pvc-1   shop/web-0 +2   1/2+        1+       abnormal: NotMounted, IOError (left alone: Reason: nothing is changed) (last error: no answer)
b.example.com   vol-2       -       -               0/1         0        healthy
b.example.com   vol-3       -       -               0/0         0        not checked yet
`,
	asWide: `
DRIVER          VOLUME-ID   PV      POD                           PUBLISHED   STAGED   HEALTH                                                                                           CLAIM       CHECKED                DUE                    TRIES   PATHS
a.example.com   vol-1       pvc-1   shop/web-0 shop/web-1 uid-3   1/2+        1+       abnormal: NotMounted, IOError (left alone: Reason: nothing is changed) (last error: no answer)   shop/data   2026-01-02T03:04:05Z   2026-01-02T03:04:35Z   2       /p /q /s
b.example.com   vol-2       -       -                             0/1         0        healthy                                                                                          -           2026-01-02T03:04:06Z   2026-01-02T03:04:36Z   0       /r
b.example.com   vol-3       -       -                             0/0         0        not checked yet                                                                                  -           -                      -                      0       -
`,
	asYAML: `
- abnormal_since: "2026-01-02T03:04:01Z"
  checked: "2026-01-02T03:04:05Z"
  claim: shop/data
  driver: a.example.com
  due: "2026-01-02T03:04:35Z"
  error: no answer
  left: 'Reason: nothing is changed'
  omitted: 3
  paths:
  - mounted: true
    path: /p
    staging: false
  - mounted: false
    path: /q
    staging: false
  - mounted: false
    path: /s
    staging: true
  pods:
  - shop/web-0
  - shop/web-1
  - uid-3
  pv: pvc-1
  reasons:
  - NotMounted
  - IOError
  tries: 2
  verdict: abnormal
  volume_id: vol-1
- abnormal_since: null
  checked: "2026-01-02T03:04:06Z"
  claim: ""
  driver: b.example.com
  due: "2026-01-02T03:04:36Z"
  error: ""
  left: ""
  omitted: 0
  paths:
  - mounted: false
    path: /r
    staging: false
  pods: []
  pv: ""
  reasons: []
  tries: 0
  verdict: healthy
  volume_id: vol-2
- abnormal_since: null
  checked: null
  claim: ""
  driver: b.example.com
  due: null
  error: ""
  left: ""
  omitted: 0
  paths: []
  pods: []
  pv: ""
  reasons: []
  tries: 0
  verdict: ""
  volume_id: vol-3
`,
}

// What scripts and people read of list is all here: a change of it is a change of the
// interface.
func TestListPrints(t *testing.T) {
	call := (&fakeAdmin{volumes: []*adminpb.Volume{
		{
			Driver: "a.example.com", VolumeId: "vol-1", Paths: []*adminpb.VolumePath{{Path: "/p", Mounted: true}, {Path: "/q"}, {Path: "/s", Staging: true}}, Omitted: 3,
			Verdict: "abnormal", Reasons: []string{"NotMounted", "IOError"}, Checked: at(5), Due: at(35), AbnormalSince: at(1), Tries: 2, Left: "Reason: nothing is changed", Error: "no answer",
			Pv: "pvc-1", Claim: "shop/data", Pods: []string{"shop/web-0", "shop/web-1", "uid-3"},
		},
		{Driver: "b.example.com", VolumeId: "vol-2", Paths: []*adminpb.VolumePath{{Path: "/r"}}, Verdict: "healthy", Checked: at(6), Due: at(36)},
		{Driver: "b.example.com", VolumeId: "vol-3"},
	}}).serve(t)
	for output, want := range listPrintsExamples {
		prints(t, call, 0, "list -o "+output, want)
	}
}

func TestHostileListPrints(t *testing.T) {
	prints(t, (&fakeAdmin{}).serve(t), 0, "list", `
DRIVER          VOLUME-ID                        PV   POD   PUBLISHED   STAGED   HEALTH
a.example.com   vol-1                            -    -     0/2         1        not checked yet
b.example.com   evil\x1b]0;x\a\u009b2J\u202e\n   -    -     0/0+        0+       not checked yet
`)
}

// abnormalReport is fakeAdmin's answer of vol-1.
const abnormalReport = `
{
  "driver": "a.example.com",
  "volume_id": "vol-1",
  "path": "",
  "verdict": "abnormal",
  "message": "abnormal: NotMounted at /p.",
  "conditions": [
    {
      "reason": "NotMounted",
      "status": "Inaccessible",
      "message": "nothing is mounted\u001b[2J there",
      "advice": "",
      "acute": true,
      "mount_point": "/p",
      "place": "the target"
    },
    {
      "reason": "ProviderFailed",
      "status": "Unknown",
      "message": "no answer",
      "advice": "",
      "acute": false,
      "mount_point": "",
      "place": "provider fuse"
    }
  ],
  "outcomes": [],
  "steps": [
    {
      "step": "rebind",
      "mount_point": "/p",
      "cost": "rebind",
      "refused": "",
      "place": "the target"
    },
    {
      "step": "restage",
      "mount_point": "/s",
      "cost": "restage",
      "refused": "not enabled",
      "place": "the staging mount point"
    }
  ],
  "omitted": 3,
  "loop_error": "the driver says no",
  "pv": "pvc-1",
  "claim": "shop/data",
  "pods": [
    "shop/web-0"
  ],
  "before": [],
  "advice": [
    "copy the files",
    "delete the pod"
  ],
  "notes": [
    "Held by 2 mounts"
  ]
}
`

func TestReportPrints(t *testing.T) {
	call := (&fakeAdmin{}).serve(t)
	prints(t, call, exitAbnormal, "check vol-1 -o json", abnormalReport)
	prints(t, call, 0, "heal vol-1 -o json", `
{
  "driver": "a.example.com",
  "volume_id": "vol-1",
  "path": "",
  "verdict": "healed",
  "message": "healed: rebind at /p.",
  "conditions": [],
  "outcomes": [
    {
      "step": "rebind",
      "mount_point": "/p",
      "error": "move_mount: EPERM\u001b[2J",
      "tier": "terminal",
      "error_type": "permission",
      "place": "the target",
      "note": ""
    },
    {
      "step": "replace",
      "mount_point": "/p",
      "error": "",
      "tier": "",
      "error_type": "",
      "place": "the target",
      "note": "read-only"
    }
  ],
  "steps": [],
  "omitted": 0,
  "loop_error": "",
  "pv": "",
  "claim": "",
  "pods": [],
  "before": [
    {
      "reason": "NotMounted",
      "status": "Inaccessible",
      "message": "",
      "advice": "",
      "acute": false,
      "mount_point": "",
      "place": "the target"
    }
  ],
  "advice": [],
  "notes": [
    "the target (ext4, ro) answered"
  ]
}
`)
	prints(t, call, 0, "heal vol-1 -o yaml", `
advice: []
before:
- acute: false
  advice: ""
  message: ""
  mount_point: ""
  place: the target
  reason: NotMounted
  status: Inaccessible
claim: ""
conditions: []
driver: a.example.com
loop_error: ""
message: 'healed: rebind at /p.'
notes:
- the target (ext4, ro) answered
omitted: 0
outcomes:
- error: "move_mount: EPERM\e[2J"
  error_type: permission
  mount_point: /p
  note: ""
  place: the target
  step: rebind
  tier: terminal
- error: ""
  error_type: ""
  mount_point: /p
  note: read-only
  place: the target
  step: replace
  tier: ""
path: ""
pods: []
pv: ""
steps: []
verdict: healed
volume_id: vol-1
`)
}

func TestStatusPrints(t *testing.T) {
	call := (&fakeAdmin{}).serve(t)
	prints(t, call, 0, "status", `
  healerctl   unknown
  version     v1
  api         does not answer: no\x1b[2J
`)
	prints(t, call, 0, "status -o json", `
{
  "api": "does not answer: no\u001b[2J",
  "healerctl": "unknown",
  "version": "v1"
}
`)
}

// prints compares all of what a command prints, and its exit code.
func prints(t *testing.T, call func(args ...string) (int, string, string), wantCode int, command, want string) {
	t.Helper()
	if code, stdout, stderr := call(strings.Fields(command)...); code != wantCode || stdout != want[1:] || stderr != "" {
		t.Errorf("%s: exit code %d, %s\n%s", command, code, stderr, stdout)
	}
}
