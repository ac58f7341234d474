package integration

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/csi-addons/node-healer/test/harness"
	"github.com/csi-addons/node-healer/test/harness/cluster"
)

// citizen is a member that asks the API for everything that a server ever asks
// for.
type citizen struct {
	*registered
	// moody is lost, healthy stays so, and suspicious is written to if it may be.
	moody               ruled
	healthy, suspicious *claimed
}

func newCitizen(t *testing.T, args ...string) *citizen {
	t.Helper()
	// Where the API streams no lists, as before Kubernetes 1.34, it is asked for
	// them.
	t.Setenv("KUBE_FEATURE_WatchListClient", "false")
	c := &citizen{registered: newRegistered(t)}
	c.Args = append(c.Args, append([]string{"--api-staleness=3s"}, args...)...)
	c.Start()
	c.moody = c.ruled("moody")
	c.healthy = c.newClaimed("ext4", "healthy")
	c.suspicious = c.newClaimed("ext4", "suspicious")
	cluster.Create(t, c.api, c.suspicious.object.Attachment(thisNode))
	harness.Run(t, "mount", "-o", "remount,errors=continue", c.suspicious.Staging)
	c.Expect("healthy", c.healthy.Request())
	c.Expect("healthy", c.suspicious.Request())
	countError(t, c.suspicious.Volume)
	return c
}

// duty is something for which the server asks the API. Each func waits: until it
// is done, or until it is not and somebody is told of the denial.
type duty struct {
	done   func(c *citizen)
	denied func(c *citizen, says []string)
}

var (
	heals = duty{
		func(c *citizen) { c.moody.Heals() },
		func(c *citizen, says []string) { c.moody.Refused(says...) },
	}
	writes = duty{
		func(c *citizen) { c.suspicion("a write still succeeds") },
		func(c *citizen, says []string) { c.suspicion(append(says, "no write was tried")...) },
	}
	tells = duty{
		func(c *citizen) {
			before := c.events()
			c.provoke()
			harness.Eventually(c.T, "two events", func() bool { return c.events() >= before+2 })
		},
		func(c *citizen, says []string) { c.provoke(); c.logs(says) },
	}
	notes = duty{
		func(c *citizen) {
			before := c.note()
			c.provoke()
			harness.Eventually(c.T, "the claim's health", func() bool { return c.note() != before })
		},
		func(c *citizen, says []string) { c.provoke(); c.logs(says) },
	}
)
