package monitoring

import "time"

// scene is a sequence of samples, one a minute, and what fires at its end. In each there is
// one more node that can be scraped, unless it says otherwise. Samples are what a node can
// serve; what it serves no longer is stale from the next scrape on.
type scene struct {
	name    string
	samples []string
	after   time.Duration
	firing  []string
	// almost is the alert that this scene nearly makes fire: it is pending, or what it
	// compares with a threshold is above zero.
	almost string
}

// checked is a node whose volumes are checked.
const checked = `node_healer_checks_total{node="n",origin="loop",outcome="abnormal"} 0+1x100`

// searches is a node whose loop lists the volumes each minute.
const searches = `node_healer_loop_last_search_timestamp_seconds{node="n"} 0+60x100`

var scenes = []scene{
	{
		name:    "volumes that cannot be used",
		samples: []string{`node_healer_volumes{node="n",driver="d",condition="NotResponding",status="Inaccessible"} 2x20`, checked},
		after:   16 * time.Minute,
		firing:  []string{"NodeHealerVolumesInaccessible"},
	},
	{
		name:    "data lost, for a reason that the metrics do not know",
		samples: []string{`node_healer_volumes{node="n",driver="d",condition="other",status="DataLoss"} 1x20`, checked},
		after:   16 * time.Minute,
		firing:  []string{"NodeHealerVolumesInaccessible"},
	},
	{
		name: "all paths of some volumes have failed, and some paths of others",
		samples: []string{
			`node_healer_volumes{node="n",driver="d",condition="PathsFailed",status="Inaccessible"} 1x20`,
			`node_healer_volumes{node="m",driver="d",condition="PathsFailed",status="Degraded"} 2x20`,
			checked, `node_healer_checks_total{node="m",origin="loop",outcome="abnormal"} 0+1x100`,
		},
		after:  16 * time.Minute,
		firing: []string{"NodeHealerVolumesInaccessible"},
	},
	{
		name: "some paths of volumes have failed",
		samples: []string{
			`node_healer_volumes{node="n",driver="d",condition="PathsFailed",status="Degraded"} 2x70`,
			checked,
		},
		after:  61 * time.Minute,
		firing: []string{"NodeHealerVolumesDegraded"},
	},
	{
		name: "a driver that finds volumes abnormal, and does not say how bad it is",
		samples: []string{
			`node_healer_volumes{node="n",driver="d",condition="DriverReportsAbnormal",status="Degraded"} 2x40`,
			checked,
		},
		after:  40 * time.Minute,
		almost: "NodeHealerVolumesDegraded",
	},
	{
		name: "a volume that a provider cannot examine",
		samples: []string{
			`node_healer_volumes{node="n",driver="d",condition="ProviderFailed",status="Unknown"} 1x70`,
			checked,
		},
		after:  61 * time.Minute,
		firing: []string{"NodeHealerVolumesDegraded"},
	},
	{
		name: "healed after ten minutes",
		samples: []string{
			`node_healer_volumes{node="n",driver="d",condition="NotMounted",status="Inaccessible"} 1x10 stale`,
			`node_healer_volumes{node="n",driver="d",condition="Healthy",status="Healthy"} 5x10 6x10`,
			checked,
		},
		after:  20 * time.Minute,
		almost: "NodeHealerVolumesInaccessible",
	},
	{
		name: "a server that is gone",
		samples: []string{
			`node_healer_volumes{node="n",driver="d",condition="IOError",status="Inaccessible"} 3x10`,
			`node_healer_volumes{node="m",driver="d",condition="IOError",status="Inaccessible"} 20x10`,
			`node_healer_volumes{node="o",driver="d",condition="IOError",status="Inaccessible"} 2x10`,
		},
		after:  6 * time.Minute,
		firing: []string{"NodeHealerBackendDown"},
	},
	{
		name: "a server that came back",
		samples: []string{
			`node_healer_volumes{node="n",driver="d",condition="IOError",status="Inaccessible"} 3x3 2x3 stale`,
			`node_healer_volumes{node="m",driver="d",condition="IOError",status="Inaccessible"} 2x3 stale`,
		},
		after:  8 * time.Minute,
		almost: "NodeHealerBackendDown",
	},
	{
		name:    "the loop gave up",
		samples: []string{`node_healer_volumes_left_alone{node="n",driver="d"} 1x10`},
		after:   6 * time.Minute,
		firing:  []string{"NodeHealerVolumesLeftAlone"},
	},
	{
		name:    "a person deleted the pod",
		samples: []string{`node_healer_volumes_left_alone{node="n",driver="d"} 1x3 stale`},
		after:   12 * time.Minute,
		almost:  "NodeHealerVolumesLeftAlone",
	},
	{
		name: "a volume without space",
		samples: []string{
			`node_healer_volumes{node="n",driver="d",condition="OutOfSpace",status="Degraded"} 1x70`,
			checked,
		},
		after:  61 * time.Minute,
		firing: []string{"NodeHealerVolumesDegraded"},
	},
	{
		name: "a volume frozen for a backup",
		samples: []string{
			`node_healer_volumes{node="n",driver="d",condition="Frozen",status="Degraded"} 1x40 stale`,
			checked,
		},
		after:  70 * time.Minute,
		almost: "NodeHealerVolumesDegraded",
	},
	{
		name:    "a step that fails each time",
		samples: []string{`node_healer_steps_total{node="n",driver="d",provider="mounts",step="rebind",error_type="execution"} 0+1x20`},
		after:   15 * time.Minute,
		firing:  []string{"NodeHealerStepsFail"},
	},
	{
		name: "a step that failed twice",
		samples: []string{
			`node_healer_steps_total{node="n",driver="d",provider="mounts",step="rebind",error_type="execution"} 0 1 2x20`,
			`node_healer_steps_total{node="n",driver="d",provider="mounts",step="rebind",error_type=""} 0+1x20`,
		},
		after:  15 * time.Minute,
		almost: "NodeHealerStepsFail",
	},
	{
		name:    "a daemon that dies all the time",
		samples: []string{`node_healer_heals_total{node="n",driver="d",origin="loop",outcome="healed"} 0+1x30`},
		after:   20 * time.Minute,
		firing:  []string{"NodeHealerHealsAgainAndAgain"},
	},
	{
		name: "eight volumes that were healed once",
		samples: []string{
			`node_healer_heals_total{node="n",driver="d",origin="loop",outcome="healed"} 0 8x30`,
			`node_healer_heals_total{node="n",driver="d",origin="call",outcome="healthy"} 0+9x30`,
		},
		after:  20 * time.Minute,
		almost: "NodeHealerHealsAgainAndAgain",
	},
	{
		name:    "a worker that cannot be killed",
		samples: []string{`node_healer_workers{node="n",state="stuck"} 1x20`},
		after:   16 * time.Minute,
		firing:  []string{"NodeHealerWorkersStuck"},
	},
	{
		name:    "a worker that could be killed later",
		samples: []string{`node_healer_workers{node="n",state="stuck"} 1x10 0x10`, `node_healer_workers{node="n",state="busy"} 9x20`},
		after:   16 * time.Minute,
		almost:  "NodeHealerWorkersStuck",
	},
	{
		name:    "a node without a healer",
		samples: []string{`up{job="node-healer",node="n"} 0x20`, `up{job="something else",node="n"} 0x20`},
		after:   16 * time.Minute,
		firing:  []string{"NodeHealerDown"},
	},
	{
		name:    "no node has a healer",
		samples: []string{`up{job="node-healer",node="another"} 1x2 stale`},
		after:   20 * time.Minute,
		firing:  []string{"NodeHealerDown"},
	},
	{
		name:    "an update",
		samples: []string{`up{job="node-healer",node="n"} 1 0x5 1x20`},
		after:   16 * time.Minute,
		almost:  "NodeHealerDown",
	},
	{
		name: "no check has an answer any more",
		samples: []string{
			searches,
			`node_healer_volumes{node="n",driver="d",condition="Healthy",status="Healthy"} 3x40`,
			`node_healer_checks_total{node="n",origin="loop",outcome="healthy"} 0+3x10 30x30`,
			`node_healer_checks_total{node="n",origin="loop",outcome="error"} 0x10 3+3x30`,
			`node_healer_checks_total{node="n",origin="loop",outcome="not-found"} 0+1x40`,
		},
		after:  26 * time.Minute,
		firing: []string{"NodeHealerLoopBehind"},
	},
	{
		name: "no check ends any more",
		samples: []string{
			searches,
			`node_healer_volumes{node="n",driver="d",condition="Healthy",status="Healthy"} 3x40`,
			`node_healer_checks_total{node="n",origin="loop",outcome="healthy"} 0+3x10 30x30`,
		},
		after:  26 * time.Minute,
		firing: []string{"NodeHealerLoopBehind"},
	},
	{
		name: "no check has had an answer since the start",
		samples: []string{
			searches,
			`node_healer_checks_total{node="n",origin="loop",outcome="error"} 0+3x40`,
		},
		after:  16 * time.Minute,
		firing: []string{"NodeHealerLoopBehind"},
	},
	{
		name:    "a loop that could never list the volumes",
		samples: []string{`node_healer_loop_last_search_timestamp_seconds{node="n"} 0x40`},
		after:   16 * time.Minute,
		firing:  []string{"NodeHealerLoopBehind"},
	},
	{
		name: "a loop that cannot list the volumes any more, and checks those that it knows",
		samples: []string{
			`node_healer_loop_last_search_timestamp_seconds{node="n"} 0+60x10 600x30`,
			`node_healer_volumes{node="n",driver="d",condition="Healthy",status="Healthy"} 3x40`,
			`node_healer_checks_total{node="n",origin="loop",outcome="healthy"} 0+3x40`,
		},
		after:  26 * time.Minute,
		firing: []string{"NodeHealerLoopBehind"},
	},
	{
		name: "a loop that hangs, and answers no scrape",
		samples: []string{
			`node_healer_loop_last_search_timestamp_seconds{node="n"} 0+60x10 600x30`,
			`node_healer_volumes{node="n",driver="d",condition="Healthy",status="Healthy"} 3x10 stale`,
			`node_healer_checks_total{node="n",origin="loop",outcome="healthy"} 0+3x10 30x30`,
		},
		after:  26 * time.Minute,
		firing: []string{"NodeHealerLoopBehind"},
	},
	{
		name: "storage that answers again after twelve minutes",
		samples: []string{
			searches,
			`node_healer_volumes{node="n",driver="d",condition="Healthy",status="Healthy"} 3x40`,
			`node_healer_checks_total{node="n",origin="loop",outcome="healthy"} 0+3x10 30x11 33+3x30`,
			`node_healer_checks_total{node="n",origin="loop",outcome="error"} 0x10 3+3x11 36x30`,
		},
		after:  40 * time.Minute,
		almost: "NodeHealerLoopBehind",
	},
	{
		name: "volumes that can be listed again after twelve minutes",
		samples: []string{
			`node_healer_loop_last_search_timestamp_seconds{node="n"} 0x11 720+60x30`,
		},
		after:  40 * time.Minute,
		almost: "NodeHealerLoopBehind",
	},
	{
		name: "a search and a check each eight minutes, and a node whose only volume is not there",
		samples: []string{
			`node_healer_loop_last_search_timestamp_seconds{node="n"} 0x7 480x7 960x7 1440x7 1920x7`,
			`node_healer_volumes{node="n",driver="d",condition="Healthy",status="Healthy"} 1x39`,
			`node_healer_checks_total{node="n",origin="loop",outcome="healthy"} 1x7 2x7 3x7 4x7 5x7`,
			`node_healer_loop_last_search_timestamp_seconds{node="m"} 0+60x40`,
			`node_healer_checks_total{node="m",origin="loop",outcome="not-found"} 0+1x40`,
		},
		after:  39 * time.Minute,
		almost: "NodeHealerLoopBehind",
	},
	{
		name: "a node of whose volumes none can be judged",
		samples: []string{
			searches,
			`node_healer_volumes{node="n",driver="d",condition="Unjudged",status="Unknown"} 1x40`,
			`node_healer_checks_total{node="n",origin="loop",outcome="not judged"} 0+1x40`,
		},
		after: 40 * time.Minute,
	},
	{
		name: "a loop that a setting switches off, and later on",
		samples: []string{
			`node_healer_loop_last_search_timestamp_seconds{node="n"} 0+60x10 stale _x28 600 2400+60x30`,
			`node_healer_volumes{node="n",driver="d",condition="Disconnected",status="Inaccessible"} 2x10 stale _x28 2x31`,
			`node_healer_checks_total{node="n",origin="loop",outcome="abnormal"} 0+2x10 20x30 22+2x30`,
		},
		after:  42 * time.Minute,
		almost: "NodeHealerLoopBehind",
	},
	{
		name: "a server without a loop, whose calls get no answer",
		samples: []string{
			`node_healer_checks_total{node="n",origin="call",outcome="error"} 0+3x40`,
			`node_healer_errors_total{node="n",operation="check",kind="failed",error_type="timeout"} 0+3x40`,
		},
		after: 40 * time.Minute,
	},
	{
		name: "the API forbids",
		samples: []string{
			`node_healer_api_requests_total{node="n",verb="GET",code="403"} 0+3x40`,
			`node_healer_api_requests_total{node="n",verb="GET",code="200"} 0+6x40`,
		},
		after:  35 * time.Minute,
		firing: []string{"NodeHealerAPIFails"},
	},
	{
		name: "objects that are gone, and few errors",
		samples: []string{
			`node_healer_api_requests_total{node="n",verb="GET",code="404"} 0+9x40`,
			`node_healer_api_requests_total{node="n",verb="GET",code="<error>"} 0+1x40`,
		},
		after:  35 * time.Minute,
		almost: "NodeHealerAPIFails",
	},
}
