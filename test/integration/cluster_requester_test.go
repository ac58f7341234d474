package integration

import (
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/csi-addons/node-healer/test/harness"
	"github.com/csi-addons/node-healer/test/harness/cluster"
	"github.com/csi-addons/node-healer/test/harness/csidriver"
)

// requester is a member whose server asks the API for everything that a server ever
// asks for.
type requester struct {
	*registered
	// lost lost its mount, healthy did not, and suspicious is written to if it may be.
	lost                ruled
	healthy, suspicious *claimed
	restaged            restaged
	roles               []*rolesOf
	// suspect is a pod that may be the driver's.
	suspect *corev1.Pod
	// started is the length of the logs at the last start.
	started, gatewayStarted int
}

// rolesOf is what the shipped manifests let one account do.
type rolesOf struct {
	account     string
	clusterRole *rbacv1.ClusterRole
	role        *rbacv1.Role
}

// newRequester takes whether its server is to have lists streamed, which not every
// API that is in use can do; else it asks for lists.
func newRequester(t *testing.T, streams bool) *requester {
	t.Helper()
	t.Setenv("KUBE_FEATURE_WatchListClient", strconv.FormatBool(streams))
	c := &requester{registered: newRegistered(t)}
	c.Start()
	c.appears("")
	c.lost = c.ruled("lost")
	c.healthy = c.newClaimed("ext4", "healthy")
	c.Expect("healthy", c.healthy.Request())
	c.suspicious = c.newClaimed("ext4", "suspicious")
	cluster.Create(t, c.api, c.suspicious.object.Attachment(thisNode))
	harness.Run(t, "mount", "-o", "remount,errors=continue", c.suspicious.Staging)
	c.Expect("healthy", c.suspicious.Request())
	countError(t, c.suspicious.Volume)
	c.Settings(map[string]string{"restage-drivers": harness.Driver + ": unmount-first"})
	c.restaged = c.newRestaged(c.NewCSIDriver(csidriver.Mode{NoAddons: true}), "restaged")

	roles := c.api.Admin().RbacV1()
	for _, account := range []string{ownAccount, gatewayName} {
		r := &rolesOf{account: account}
		var err error
		r.clusterRole, err = roles.ClusterRoles().Get(t.Context(), account, metav1.GetOptions{})
		harness.Must(t, err)
		r.role, err = roles.Roles(ownNamespace).Get(t.Context(), account, metav1.GetOptions{})
		harness.Must(t, err)
		c.roles = append(c.roles, r)
	}
	t.Cleanup(func() { c.api.Apply(t, manifests) })
	return c
}

// Start starts server and gateway, and forgets what others logged.
func (c *requester) Start() {
	c.T.Helper()
	c.started, c.gatewayStarted = sizeOf(c.Log), sizeOf(c.gateway.Log)
	c.start()
}

// Stop stops both.
func (c *requester) Stop() {
	c.T.Helper()
	c.gateway.Stop()
	c.registered.Stop()
}

func sizeOf(log harness.LogFile) int {
	info, err := os.Stat(string(log))
	if err != nil {
		return 0
	}
	return int(info.Size())
}

// logs waits for one line of the server that says all, gatewayLogs for one of the
// gateway.
func (c *requester) logs(says []string) {
	c.T.Helper()
	waitForLine(c.T, c.Log, c.started, says)
}

func (c *requester) gatewayLogs(says []string) {
	c.T.Helper()
	waitForLine(c.T, c.gateway.Log, c.gatewayStarted, says)
}

func waitForLine(t testing.TB, log harness.LogFile, from int, says []string) {
	t.Helper()
	harness.Eventually(t, "the log says "+strings.Join(says, " … "), func() bool {
		return slices.ContainsFunc(strings.Split(log.String()[from:], "\n"), func(line string) bool { return saysAll(line, says...) })
	})
}

// suspects waits for an answer for the suspicious volume.
func (c *requester) suspects(says ...string) {
	c.T.Helper()
	harness.Eventually(c.T, "the answer says "+strings.Join(says, " … "), func() bool {
		return saysAll(c.answer(c.suspicious.Request()), says...)
	})
}

// sick and well have the lost volume be refused and healed: whatever is reported of
// volumes changes.
func (c *requester) sick() {
	c.T.Helper()
	c.subject(c.lost.pod).Mode("check")
	c.lost.Refused()
}

func (c *requester) well() {
	c.T.Helper()
	c.subject(c.lost.pod).NoMode()
	c.lost.Heals()
}

// dead kills the daemon of the volume that is staged anew, unless it is dead.
func (c *requester) dead() {
	c.T.Helper()
	if unix.Statfs(c.restaged.Staging, new(unix.Statfs_t)) == nil {
		c.restaged.d.KillDaemon(c.restaged.Volume)
	}
}

// events counts what was told of the volume to its claim.
func (v *claimed) events() (count int) {
	v.m.T.Helper()
	list, err := v.m.api.Admin().CoreV1().Events(v.m.namespace).List(v.m.T.Context(), metav1.ListOptions{FieldSelector: "involvedObject.name=" + v.claim.Name})
	harness.Must(v.m.T, err)
	for _, e := range list.Items {
		count += int(e.Count)
	}
	return count
}

// rejected counts the requests that the API refused, from any client:
// its metrics of requests have none of these.
func (c *requester) rejected() (count int) {
	c.T.Helper()
	raw, err := c.api.Admin().Discovery().RESTClient().Get().AbsPath("/metrics").DoRaw(c.T.Context())
	harness.Must(c.T, err)
	for line := range strings.Lines(string(raw)) {
		name, rest, _ := strings.Cut(line, "{")
		if name == "authentication_attempts" && !strings.Contains(rest, `"success"`) || name == "authorization_attempts_total" && !strings.Contains(rest, `"allowed"`) {
			n, err := strconv.Atoi(strings.TrimSpace(rest[strings.LastIndexByte(rest, ' '):]))
			harness.Must(c.T, err)
			count += n
		}
	}
	return count
}

// controller calls as the CSI-Addons controller does.
func (c *requester) controller() error {
	c.T.Helper()
	return identify(c.T.Context(), c.dial(c.controllerToken()))
}

// permission is one verb on one resource, by a rule of its own.
type permission struct {
	of   *rolesOf
	rule rbacv1.PolicyRule
	// namespace is that of the Role which has it; empty: it is the ClusterRole.
	namespace string
}

// String returns "verb resource.group".
func (p permission) String() string {
	name := p.rule.Verbs[0] + " " + p.rule.Resources[0]
	if group := p.rule.APIGroups[0]; group != "" {
		name += "." + group
	}
	return name
}

// each returns one permission for each verb on each resource.
func (r *rolesOf) each(rules []rbacv1.PolicyRule, namespace string) []permission {
	var all []permission
	for _, rule := range rules {
		for _, group := range rule.APIGroups {
			for _, resource := range rule.Resources {
				for _, verb := range rule.Verbs {
					all = append(all, permission{r, rbacv1.PolicyRule{
						APIGroups: []string{group}, Resources: []string{resource}, Verbs: []string{verb}, ResourceNames: rule.ResourceNames,
					}, namespace})
				}
			}
		}
	}
	return all
}

// permissions are all that the shipped roles give.
func (c *requester) permissions() (all []permission) {
	for _, r := range c.roles {
		all = append(append(all, r.each(r.clusterRole.Rules, "")...), r.each(r.role.Rules, ownNamespace)...)
	}
	return all
}

// user is whose permission it is.
func (p permission) user() string {
	return "system:serviceaccount:" + ownNamespace + ":" + p.of.account
}

// take takes a permission away, give gives it back.
func (c *requester) take(p permission) { c.T.Helper(); c.grant(p, false) }

func (c *requester) give(p permission) { c.T.Helper(); c.grant(p, true) }

func (c *requester) grant(p permission, is bool) {
	c.T.Helper()
	left := func(rules []rbacv1.PolicyRule, namespace string) []rbacv1.PolicyRule {
		var kept []rbacv1.PolicyRule
		for _, one := range p.of.each(rules, namespace) {
			if is || one.namespace != p.namespace || one.String() != p.String() {
				kept = append(kept, one.rule)
			}
		}
		return kept
	}
	cluster.Change(c.T, c.api, p.of.clusterRole, func(r *rbacv1.ClusterRole) { r.Rules = left(p.of.clusterRole.Rules, "") })
	cluster.Change(c.T, c.api, p.of.role, func(r *rbacv1.Role) { r.Rules = left(p.of.role.Rules, ownNamespace) })
	c.api.Awaits(c.T, ownNamespace, p.of.account, p.rule, p.namespace, is)
}
