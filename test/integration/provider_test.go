package integration

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/csi-addons/node-healer/test/harness"
	"github.com/csi-addons/node-healer/test/harness/faultfs"
)

// TestExampleProvider registers the example of docs/writing-a-provider.md by the line
// that is there. Its daemon's files say that a mount which answers is lost; a program
// heals that.
func TestExampleProvider(t *testing.T) {
	page, err := os.ReadFile("../../docs/writing-a-provider.md")
	harness.Must(t, err)
	line := regexp.MustCompile(`(?m)^examplefs\.New\(.*\),$`).Find(page)
	n := harness.NewNode(t, "--standalone")
	program := filepath.Join(n.Dir, "reconnect")
	here := strings.NewReplacer("/run/examplefs", n.Dir, "/usr/sbin/examplefs-reconnect", program).Replace(string(line))
	n.Binary = harness.BuildWithProvider(t, "github.com/csi-addons/node-healer/docs/examplefs", here)
	write := func(name, text string) {
		t.Helper()
		harness.Must(t, os.WriteFile(name, []byte(text), 0o700))
	}
	file := func(name string) string { return filepath.Join(n.Dir, "examplefs."+name) }
	write(program, "#!/bin/sh\n[ \"$1\" = --mount=examplefs ] && echo ok >"+file("health")+"\n")
	write(file("health"), "ok\n")
	n.Start()
	v, _ := n.NewFUSEVolume("example", faultfs.Config{Name: "examplefs"})
	n.Expect("healthy", v.Request())
	before := n.Table()

	write(file("health"), "lost\n")
	n.Expect("abnormal", v.Request(), "SessionLost", "the daemon lost its session", "Refused: reconnect", "there is no pid file", "see the daemon's log")
	write(file("pid"), "7\n")
	n.Expect("healed", v.Request(), "SessionLost", "reconnect")
	n.Expect("healthy", v.Request())

	write(file("health"), "degraded\n")
	n.Expect("abnormal", v.Request(), "ReplicaMissing")
	harness.Must(t, os.Remove(file("health")))
	harness.Must(t, os.Symlink("/etc/passwd", file("health")))
	n.Expect("abnormal", v.Request(), "examplefs")
	n.SameTable(before)

	n.Stop()
	n.Args = append(n.Args[:1], "--disable-provider=examplefs")
	n.Start()
	n.Expect("healthy", v.Request())
}
