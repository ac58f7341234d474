package integration

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"

	"github.com/csi-addons/node-healer/test/harness"
	"github.com/csi-addons/node-healer/test/harness/cluster"
)

// TestEachPermission removes each permission of the shipped roles in turn: what it is
// for is refused or missing, the answer or the log names the permission and how to
// check and grant it, and nothing else breaks. Granted again, all works without a
// restart.
func TestEachPermission(t *testing.T) {
	c := newRequester(t, false)
	shipped, outer := c.permissions(), c.T
	for _, p := range shipped {
		t.Run(p.String(), func(t *testing.T) {
			defer func() { c.T = outer }()
			c.T = t
			d, known := purposes[p.String()]
			if !known {
				t.Fatal("nothing needs it")
			}
			c.Stop()
			if d.before != nil {
				d.before(c)
			}
			c.take(p)
			answered := c.rejected()
			c.Start()
			says := []string{
				"denied (403)", "kubectl auth can-i " + p.String(), "--as=" + p.user(),
			}
			if p.of.account == gatewayName { // the API's own words
				says = []string{p.user(), "cannot " + p.rule.Verbs[0] + " resource", p.rule.Resources[0]}
			}
			d.denied(c, says)
			c.Expect("healthy", c.healthy.Request())
			if d.costs != healing {
				heals.done(c)
			}
			if c.rejected() == answered {
				t.Error("the API has denied nothing")
			}
			c.give(p)
			d.done(c)
		})
	}
	for name := range purposes {
		if !slices.ContainsFunc(shipped, func(p permission) bool { return p.String() == name }) {
			t.Errorf("%s is not among the shipped permissions", name)
		}
	}
}

// TestShippedPermissions uses everything that a server ever asks of the API, and sees
// that nothing is denied.
func TestShippedPermissions(t *testing.T) {
	for _, streams := range []bool{false, true} {
		t.Run(fmt.Sprintf("streams=%t", streams), func(t *testing.T) {
			c := newRequester(t, streams)
			before := c.rejected()
			for range 2 {
				c.Stop()
				c.Start()
				for _, d := range []duty{renews, heals, writes, stages, tells, notes, letsIn, registers} {
					d.done(c)
				}
			}
			if now := c.rejected(); now != before {
				t.Errorf("the API did not let %d requests in", now-before)
			}
			if log := strings.ToLower(c.Log.String()); strings.Contains(log, "denied") || strings.Contains(log, "forbidden") {
				t.Error(log)
			}
		})
	}
}

// TestTokenThatEnded ends the server's token: the API does not know the server any
// more.
func TestTokenThatEnded(t *testing.T) {
	m := newMember(t)
	m.Start()
	v := m.ruled("known")
	healthy := m.newClaimed("ext4", "healthy")
	m.Expect("healthy", healthy.Request())
	m.Stop()
	m.Args = append(m.Args, "--kubeconfig="+m.api.Kubeconfig(t, ownNamespace, ownAccount, cluster.Ending(-2*time.Minute)))
	m.Start()
	v.Refused("not authenticated (401)", "it has expired", "Check: kubectl get serviceaccount")
	m.Expect("healthy", healthy.Request())
}

const healing = "healing"

// duty is something for which the server asks the API.
type duty struct {
	// costs is what is gone without it.
	costs string
	// before comes before the server's start.
	before func(c *requester)
	// done waits until it is done, denied until it is not, and the answer or the log says so
	// so.
	done   func(c *requester)
	denied func(c *requester, says []string)
}

var (
	heals = duty{
		costs:  healing,
		done:   func(c *requester) { c.lost.Heals() },
		denied: func(c *requester, says []string) { c.lost.Refused(says...) },
	}
	// What an informer cannot read, a step does: it costs looks their memory.
	follows = duty{
		done:   func(c *requester) { c.lost.Heals() },
		denied: func(c *requester, says []string) { c.logs(says); c.lost.Heals() },
	}
	// A DaemonSet's pod that may be the driver's, in a namespace that may count.
	waits = duty{
		costs:  healing,
		before: func(c *requester) { c.mayBeDriver() },
		done:   func(c *requester) { c.lost.Heals() },
		denied: func(c *requester, says []string) { c.lost.Refused(says...) },
	}
	// A driver that is told to stage a volume anew is told how it is attached.
	stages = duty{
		done: func(c *requester) {
			c.dead()
			harness.Eventually(c.T, "the volume is staged anew", func() bool { return saysAll(c.answer(c.restaged.Request()), "healed:", "restage of ") })
		},
		denied: func(c *requester, says []string) {
			c.dead()
			harness.Eventually(c.T, "the answer says "+strings.Join(says, " … "), func() bool { return saysAll(c.answer(c.restaged.Request()), says...) })
		},
	}
	writes = duty{
		done:   func(c *requester) { c.suspects("a write still succeeds") },
		denied: func(c *requester, says []string) { c.suspects(append(says, "no write was tried: ")...) },
	}
	tells = duty{
		done: func(c *requester) {
			before := c.lost.events()
			c.sick()
			c.well()
			harness.Eventually(c.T, "the events", func() bool { return c.lost.events() > before })
		},
		denied: func(c *requester, says []string) {
			for range 2 { // the second time it is the same event once more
				c.sick()
				c.well()
			}
			c.logs(says)
		},
	}
	notes = duty{
		// A claim's annotation is written again after an hour only.
		before: func(c *requester) {
			cluster.Change(c.T, c.api, c.lost.claim, func(claim *corev1.PersistentVolumeClaim) {
				maps.DeleteFunc(claim.Annotations, func(key, _ string) bool { return strings.Contains(key, "volumehealth") })
			})
		},
		done: func(c *requester) {
			c.sick()
			c.lost.becomes("unhealthy")
			c.well()
			c.lost.becomes("healthy")
		},
		denied: func(c *requester, says []string) { c.sick(); c.logs(says); c.well() },
	}
	letsIn = duty{
		done: func(c *requester) {
			harness.Eventually(c.T, "the controller is let in", func() bool { return c.controller() == nil })
		},
		denied: func(c *requester, says []string) {
			if err := c.controller(); status.Code(err) != codes.Unauthenticated {
				c.T.Errorf("the controller gets %v", err)
			}
			c.gatewayLogs(says)
		},
	}
	registers = duty{
		before: func(c *requester) { c.remove() },
		done:   func(c *requester) { c.appears("") },
		denied: func(c *requester, says []string) { c.gatewayLogs(says) },
	}
	renews = duty{
		before: func(c *requester) { c.appears("") },
		done: func(c *requester) {
			c.gatewayLogs([]string{"Registered for the CSI-Addons controller", `verb="patch"`})
		},
		denied: func(c *requester, says []string) { c.gatewayLogs(says) },
	}
)

// mayBeDriver makes a pod of which only its namespace tells whether it is the driver's.
func (c *requester) mayBeDriver() {
	c.T.Helper()
	if c.suspect == nil {
		c.suspect = c.daemon("maybe", mounts(c.pluginDir()))
	}
}

// purposes says what each permission of the shipped roles is for.
var purposes = map[string]duty{
	"list pods": heals, "watch pods": follows, "get pods": heals,
	"list nodes": follows, "watch nodes": follows, "get nodes": heals,
	"get persistentvolumes": heals, "get persistentvolumeclaims": heals, "get storageclasses.storage.k8s.io": heals,
	"list configmaps": follows, "watch configmaps": follows, "get configmaps": heals,
	"get namespaces": waits, "list persistentvolumes": writes,
	"list volumeattachments.storage.k8s.io": writes, "get volumeattachments.storage.k8s.io": stages, "get csidrivers.storage.k8s.io": writes,
	"create events": tells, "patch events": tells,
	"patch persistentvolumeclaims":                     notes,
	"create tokenreviews.authentication.k8s.io":        letsIn,
	"create subjectaccessreviews.authorization.k8s.io": letsIn,
	"get csiaddonsnodes.csiaddons.openshift.io":        registers,
	"create csiaddonsnodes.csiaddons.openshift.io":     registers,
	"patch csiaddonsnodes.csiaddons.openshift.io":      renews,
}
