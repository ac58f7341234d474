package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"
)

// says is what a program prints that was started with --version, or for the worker that
// no server has started it.
func says(program string) string {
	if program == "node-healer-worker" {
		return "not started by node-healer"
	}
	return program + " "
}

// startContainerd starts a containerd for the test, and returns its client.
func startContainerd(t *testing.T) (ctr func(args ...string) (string, error)) {
	t.Helper()
	dir := t.TempDir()
	socket := dir + "/c.sock"
	config := dir + "/config.toml"
	must(t, os.WriteFile(config, []byte(`version = 2
disabled_plugins = ["io.containerd.grpc.v1.cri"]
root = "`+dir+`/root"
state = "`+dir+`/state"
[plugins."io.containerd.internal.v1.opt"]
  path = "`+dir+`/opt"
`), 0o600))
	daemon := exec.Command("containerd", "--config", config, "--address", socket)
	must(t, daemon.Start())
	t.Cleanup(func() {
		_ = daemon.Process.Kill()
		_ = daemon.Wait()
	})
	ctr = func(args ...string) (string, error) {
		out, err := exec.Command("ctr", append([]string{"--address", socket}, args...)...).CombinedOutput()
		return string(out), err
	}
	for end := time.Now().Add(time.Minute); ; time.Sleep(50 * time.Millisecond) {
		out, err := ctr("version")
		if err == nil {
			break
		}
		if time.Now().After(end) {
			t.Fatal(out)
		}
	}
	return ctr
}

// TestStartsInContainerd imports the archive into a containerd of its own, and starts each
// program from it.
func TestStartsInContainerd(t *testing.T) {
	ctr := startContainerd(t)
	c := writtenOnce(t)
	if out, err := ctr("images", "import", "--snapshotter", "native", "--platform", "linux/"+runtime.GOARCH, filepath.Join(c.out, archive)); err != nil {
		t.Fatal(out)
	}
	for _, program := range programs { // by path as the manifests do, by name as a person does
		for _, command := range []string{"/" + programDir + program, program} {
			out, _ := ctr("run", "--rm", "--snapshotter", "native", c.name, program, command, "--version")
			if !strings.Contains(out, says(program)) {
				t.Errorf("%s: %s", command, out)
			}
		}
	}
}

// TestImportedAsTheReadmeSays imports the archive with the commands that kind and k3s run on
// their nodes, and finds the image by the name that the manifests have.
func TestImportedAsTheReadmeSays(t *testing.T) {
	c := writtenOnce(t)
	ctr := startContainerd(t)
	for name, command := range map[string][]string{
		"kind": {"images", "import", "--all-platforms", "--digests", "--snapshotter", "native"},
		"k3s":  {"images", "import", "--snapshotter", "native"},
	} {
		t.Run(name, func(t *testing.T) {
			of := []string{"--namespace", name}
			if out, err := ctr(slices.Concat(of, command, []string{filepath.Join(c.out, archive)})...); err != nil {
				t.Fatal(out)
			}
			out, err := ctr(slices.Concat(of, []string{"images", "list", "--quiet"})...)
			if err != nil || !slices.Contains(strings.Fields(out), c.name) {
				t.Errorf("the images are %q, without %s", out, c.name)
			}
			if out, _ := ctr(slices.Concat(of, []string{"run", "--rm", "--snapshotter", "native", c.name, "started", "node-healer", "--version"})...); !strings.Contains(out, says("node-healer")) {
				t.Errorf("it does not start: %s", out)
			}
		})
	}
}

// TestOtherArchitecture starts the programs of arm64 in an emulator.
func TestOtherArchitecture(t *testing.T) {
	for _, program := range programs {
		out, _ := exec.Command("qemu-aarch64-static", filepath.Join(built, "linux/arm64", program), "--version").CombinedOutput()
		if !strings.Contains(string(out), says(program)) {
			t.Errorf("%s: %s", program, out)
		}
	}
}
