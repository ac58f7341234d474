package chart

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/csi-addons/node-healer/test/harness"
	"github.com/csi-addons/node-healer/test/harness/cluster"
)

const (
	operations = "../../docs/operations.md"
	readme     = "../../README.md"
)

// The commands of the page do what it says, one section after the other. helm's are
// tested as Helm's actions (install_test.go).
func TestCommandsOfOperations(t *testing.T) {
	c := cluster.Start(t)
	sections := commands(t, operations)
	work := checkout(t)
	for _, step := range []struct{ section, want string }{
		{"Install", "ghcr.io/csi-addons/node-healer:v0.1.0 512Mi"},
		{"Upgrade", "ghcr.io/csi-addons/node-healer:v0.2.0 512Mi"},
		{"Rollback", "ghcr.io/csi-addons/node-healer:v0.1.0 512Mi"},
		{"Sizing", "ghcr.io/csi-addons/node-healer:v0.1.0 1Gi"},
	} {
		run(t, c, work, sections[step.section])
		got := c.Kubectl(t, "get", "daemonset/node-healer", "--namespace="+namespace,
			"--output=jsonpath={.spec.template.spec.containers[0].image} {.spec.template.spec.containers[0].resources.limits.memory}")
		if got != step.want {
			t.Errorf("after %s it is %s, not %s", step.section, got, step.want)
		}
	}

	made := objects{}
	made.add(t, build(t, "."))
	delete(made, "Namespace/"+namespace)
	run(t, c, work, sections["Uninstall"])
	for object := range made {
		harness.Eventually(t, object+" is gone", func() bool {
			return c.Kubectl(t, "get", "--ignore-not-found", "--namespace="+namespace, object) == ""
		})
	}
	finalize(t, c, work)
}

// So do those of the README that need no node: an image built as "dev" is installed, only
// reports, and heals after the one line that says so.
func TestCommandsOfTheReadme(t *testing.T) {
	c := cluster.Start(t)
	sections := commands(t, readme)
	work := checkout(t)
	run(t, c, work, sections["Quickstart"])
	got := c.Kubectl(t, "get", "daemonset/node-healer", "--namespace="+namespace,
		"--output=jsonpath={.spec.template.spec.containers[0].image} {.spec.template.spec.containers[0].args}")
	if !strings.HasPrefix(got, "ghcr.io/csi-addons/node-healer:dev ") || !strings.Contains(got, `"--loop=observe"`) {
		t.Errorf("it is %s", got)
	}
	setting := []string{"get", "configmap/node-healer", "--namespace=" + namespace, "--output=jsonpath={.data.loop}"}
	if got := c.Kubectl(t, setting...); got != "" {
		t.Errorf("a fresh install has the setting loop %q", got)
	}
	run(t, c, work, sections["Let it heal"])
	if got, want := c.Kubectl(t, setting...), "- loop: heal\n"; got != want {
		t.Errorf("the setting loop is %q, not %q", got, want)
	}
	run(t, c, work, "kubectl delete -k overlay\n")
	finalize(t, c, work)
}

// checkout makes a directory in which the manifests are where a checkout has them.
func checkout(t *testing.T) string {
	t.Helper()
	work := t.TempDir()
	harness.Must(t, os.Symlink(absolute(t, "../../deploy"), filepath.Join(work, "deploy")))
	return work
}

// commands are the shell commands of a page by section.
func commands(t *testing.T, page string) map[string]string {
	t.Helper()
	raw, err := os.ReadFile(page)
	harness.Must(t, err)
	found := map[string]string{}
	for _, section := range strings.Split(string(raw), "\n## ")[1:] {
		title, text, _ := strings.Cut(section, "\n")
		for _, block := range strings.Split(text, "```sh\n")[1:] {
			shell, _, _ := strings.Cut(block, "```")
			found[title] += shell
		}
	}
	return found
}

// elsewhere are the commands that need nodes (there are no pods), or that deploy/image tests:
// make builds the image, the others bring it to nodes.
var elsewhere = regexp.MustCompile(`^(kubectl rollout status|kubectl exec|make image|kind load|sudo k3s ctr|skopeo copy) `)

// run runs commands with bash, but for those that run elsewhere. A namespace stays until its
// controller is done with it.
func run(t *testing.T, c *cluster.Cluster, dir, shell string) {
	t.Helper()
	if shell == "" {
		t.Fatal("the page has no commands for this section")
	}
	var lines []string
	for line := range strings.Lines(shell) {
		if strings.HasPrefix(line, "kubectl delete") {
			line = strings.Replace(line, "delete", "delete --wait=false", 1)
		}
		if !elsewhere.MatchString(line) {
			lines = append(lines, line)
		}
	}
	cmd := exec.Command("bash", "-euo", "pipefail", "-c", strings.Join(lines, ""))
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "KUBECONFIG="+c.AdminKubeconfig(), "HOME="+dir,
		"PATH="+c.Programs()+":"+os.Getenv("PATH"))
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%s\n%v\n%s", shell, err, out)
	}
}

// finalize does the part of the namespace's controller, so that other tests can make the
// namespace again.
func finalize(t *testing.T, c *cluster.Cluster, dir string) {
	t.Helper()
	file := filepath.Join(dir, "namespace.json")
	harness.Must(t, os.WriteFile(file, []byte(`{"apiVersion":"v1","kind":"Namespace","metadata":{"name":"`+namespace+`"},"spec":{"finalizers":[]}}`), 0o600))
	c.Kubectl(t, "replace", "--raw=/api/v1/namespaces/"+namespace+"/finalize", "--filename="+file)
}

func absolute(t *testing.T, path string) string {
	t.Helper()
	path, err := filepath.Abs(path)
	harness.Must(t, err)
	return path
}
