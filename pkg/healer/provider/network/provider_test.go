package network

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/csi-addons/node-healer/pkg/facts"
	"github.com/csi-addons/node-healer/pkg/healer"
	"github.com/csi-addons/node-healer/pkg/healer/providertest"
)

const (
	target  = "/k/pods/a/mount"
	staging = "/k/staging"
)

var export = facts.Dev{Minor: 44}

var (
	works  = facts.Answer{Asked: true}
	hung   = facts.Answer{Asked: true, TimedOut: true, Elapsed: 5 * time.Second}
	failed = facts.Answer{Asked: true, Op: "statx", Errno: syscall.EHOSTDOWN}
)

// mounted is a volume, staged and published, of which a probe got an answer.
func mounted(a facts.Answer, fsType, source string, options ...string) healer.Case {
	at := func(role healer.Role, path string) healer.MountPoint {
		m := facts.Mount{Dev: export, FSType: fsType, Source: source, SuperOptions: options, Path: path, Root: "/"}
		return healer.MountPoint{Role: role, Path: path, Stack: []facts.Mount{m}}
	}
	return healer.Case{
		MountPoints: []healer.MountPoint{at(healer.RoleTarget, target), at(healer.RoleStaging, staging)},
		Superblocks: map[facts.Dev]healer.Superblock{export: {Dev: export, FSType: fsType, Source: source, Answer: a}},
	}
}

func nfs(a facts.Answer) healer.Case { return mounted(a, "nfs4", "srv:/a", "addr=10.0.0.1") }

func ceph(a facts.Answer) healer.Case {
	return mounted(a, "ceph", "1.1.1.1:6789,2.2.2.2:6789,3.3.3.3:6789:/")
}

// examined is the case with what Collect finds on a node, and its finding.
func examined(t *testing.T, c healer.Case, addresses map[string]error) (healer.Case, healer.Finding) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	p := New(&providertest.Tools{Addresses: addresses})
	seen, err := p.Collect(ctx, c)
	if err != nil {
		t.Fatal(err)
	}
	if seen != nil {
		c.Evidence = map[string]healer.Evidence{p.Name(): seen}
	}
	f, err := p.Examine(c)
	if err != nil || !f.Mine || len(f.Steps) > 0 {
		t.Fatalf("%+v %v", f, err)
	}
	return c, f
}

// dial is an error as net.Dialer returns it.
func dial(err error) error { return &net.OpError{Op: "dial", Net: "tcp", Err: err} }

var errRefused = dial(syscall.ECONNREFUSED)

var serverAnswers = map[string]struct {
	c         healer.Case
	addresses map[string]error
	says      string // empty: no condition
}{
	"silent":                   {c: nfs(hung), says: "10.0.0.1:2049 (no answer within 3.8s)"},
	"silent, the mount failed": {c: nfs(failed), says: "10.0.0.1:2049 (no answer within 3.8s)"},
	"refused": {
		c:         nfs(hung),
		addresses: map[string]error{"10.0.0.1:2049": errRefused},
		says:      "10.0.0.1:2049 (refused: the host answers, and nothing listens)",
	},
	"no route": {
		c:         nfs(hung),
		addresses: map[string]error{"10.0.0.1:2049": dial(syscall.EHOSTUNREACH)},
		says:      "10.0.0.1:2049 (no route to host (EHOSTUNREACH))",
	},
	"answers": {c: nfs(hung), addresses: map[string]error{"10.0.0.1:2049": nil}},
	"the name is not found": {
		c:         nfs(hung),
		addresses: map[string]error{"10.0.0.1:2049": dial(&net.DNSError{Err: "no such host", IsNotFound: true})},
	},
	"the question went wrong": {c: nfs(hung), addresses: map[string]error{"10.0.0.1:2049": errors.New("no worker")}},
	"each monitor in its way": {
		c:         ceph(hung),
		addresses: map[string]error{"2.2.2.2:6789": errRefused, "3.3.3.3:6789": dial(syscall.ENETUNREACH)},
		says:      "1.1.1.1:6789 (no answer within 3.8s), 2.2.2.2:6789 (refused: the host answers, and nothing listens), 3.3.3.3:6789 (network is unreachable (ENETUNREACH))",
	},
	"one monitor answers":    {c: ceph(hung), addresses: map[string]error{"2.2.2.2:6789": errRefused, "3.3.3.3:6789": nil}},
	"of one monitor nothing": {c: ceph(hung), addresses: map[string]error{"3.3.3.3:6789": errors.New("odd")}},
	"GlusterFS without daemon": {
		c:    mounted(facts.Answer{Asked: true, Errno: syscall.ENOTCONN}, "fuse.glusterfs", "srv:/v"),
		says: "srv:24007 (no answer within 3.8s)",
	},
	"no address":                 {c: mounted(hung, "nfs4", "server:/x", "proto=rdma")},
	"long names, all silent":     {c: mounted(hung, "ceph", manyMonitors()), says: "and 2 more"},
	"a write got no answer":      {c: nfs(facts.Answer{Asked: true, TimedOut: true, Writing: true})},
	"stale":                      {c: nfs(facts.Answer{Asked: true, Errno: syscall.ESTALE})},
	"evicted":                    {c: ceph(facts.Answer{Asked: true, Errno: syscall.ESHUTDOWN})},
	"the server refuses us":      {c: nfs(facts.Answer{Asked: true, Errno: syscall.EACCES})},
	"the mount answers":          {c: nfs(works)},
	"the mount was not asked":    {c: nfs(facts.Answer{})},
	"the mount answers, refused": {c: nfs(works), addresses: map[string]error{"10.0.0.1:2049": errRefused}},
}

func TestServerUnreachable(t *testing.T) {
	for name, tc := range serverAnswers {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				_, f := examined(t, tc.c, tc.addresses)
				if tc.says == "" {
					if len(f.Conditions) > 0 {
						t.Errorf("%+v", f.Conditions)
					}
					return
				}
				if len(f.Conditions) != 1 {
					t.Fatalf("%+v", f.Conditions)
				}
				got := f.Conditions[0]
				if got.Reason != healer.ServerUnreachable || got.Status != healer.Inaccessible || got.Acute || got.MountPoint != target || got.Superblock != export {
					t.Errorf("%+v", got)
				}
				if !strings.Contains(got.Message, tc.says) {
					t.Errorf("got %q, want %q", got.Message, tc.says)
				}
			})
		})
	}
}

func manyMonitors() string {
	var all []string
	for i := range 6 {
		all = append(all, fmt.Sprintf("%s%d", strings.Repeat("m", 127), i))
	}
	return strings.Join(all, ",") + ":/"
}

// TestHealthyMountsAreNotAskedAbout: a mount that answers is never abnormal by this, so
// nothing is asked, whatever it would say.
func TestHealthyMountsAreNotAskedAbout(t *testing.T) {
	seen, err := New(nil).Collect(t.Context(), nfs(works)) // it would panic
	if seen != nil || err != nil {
		t.Errorf("%v %v", seen, err)
	}
}

// TestLittleTimeIsNoSilence: an answer that could not come in time is none that is late.
func TestLittleTimeIsNoSilence(t *testing.T) {
	for err, waited := range map[error]time.Duration{
		context.DeadlineExceeded: shortest - 1,
		context.Canceled:         time.Minute,
	} {
		if how, known := failure(err, waited); known {
			t.Errorf("%v after %s: %q", err, waited, how)
		}
	}
}

// TestAtMostFourAddressesAreAsked: a volume on two clusters that hang. What is said of the
// second one would need more.
func TestAtMostFourAddressesAreAsked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := mounted(hung, "ceph", "a,b,c,d:/")
		other := facts.Dev{Minor: 45}
		c.Superblocks[other] = healer.Superblock{Dev: other, Answer: hung}
		c.MountPoints[1].Stack[0].Dev, c.MountPoints[1].Stack[0].Source = other, "e,f:/"
		start := time.Now()
		c, f := examined(t, c, nil)
		if asked := c.Evidence["network"].(evidence); len(asked) != maxAddresses {
			t.Errorf("asked: %v", asked)
		}
		if len(f.Conditions) != 1 || f.Conditions[0].MountPoint != target {
			t.Errorf("%+v", f.Conditions)
		}
		if waited := time.Since(start); waited > 5*time.Second {
			t.Errorf("one after the other: %s", waited)
		}
	})
}

func TestConformance(t *testing.T) {
	cases := providertest.Cases{Healthy: func() healer.Case { return nfs(works) }, Sick: map[string]func() healer.Case{}}
	for name, build := range map[string]func() healer.Case{
		"silent":     func() healer.Case { return nfs(hung) },
		"monitors":   func() healer.Case { return ceph(hung) },
		"long names": func() healer.Case { return mounted(hung, "ceph", manyMonitors()) },
	} {
		cases.Sick[name] = func() healer.Case {
			c := build()
			seen := evidence{}
			for _, a := range addresses(c.MountPoints[0].Stack[0]) {
				seen[a] = "refused: the host answers, and nothing listens"
			}
			c.Evidence = map[string]healer.Evidence{"network": seen}
			return c
		}
	}
	cases.Tools = &providertest.Tools{}
	providertest.Run(t, New(cases.Tools), cases)
}
