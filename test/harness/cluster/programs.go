package cluster

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/csi-addons/node-healer/test/harness"
)

// needsPrograms returns the directory of programs of Kubernetes. It skips where
// they were not built, and fails where skipping is not allowed.
func needsPrograms(tb testing.TB, names ...string) string {
	tb.Helper()
	harness.NeedsHost(tb, "the programs of Kubernetes")
	dir := filepath.Join(moduleRoot(tb), "bin", "controlplane")
	for _, name := range names {
		_, err := os.Stat(filepath.Join(dir, name))
		switch {
		case err == nil:
		case os.Getenv("CI") != "":
			tb.Fatalf("needs %s, and in CI a test that would skip fails (make kubernetes): %v", name, err)
		default:
			tb.Skipf("needs %s, which make kubernetes builds: %v", name, err)
		}
	}
	return dir
}

// moduleRoot is the directory of this module: tests run somewhere beneath it.
func moduleRoot(tb testing.TB) string {
	tb.Helper()
	dir, err := os.Getwd()
	harness.Must(tb, err)
	for ; ; dir = filepath.Dir(dir) {
		raw, err := os.ReadFile(filepath.Join(dir, "go.mod"))
		if err == nil && strings.HasPrefix(string(raw), "module github.com/csi-addons/node-healer\n") {
			return dir
		}
		if dir == filepath.Dir(dir) {
			tb.Fatal("this test does not run in its module")
		}
	}
}

// freePorts finds ports of 127.0.0.1 for the API and for etcd, and the one
// after etcd's for its peers. They lie below the range from which the kernel
// serves outgoing connections: a client that knocks at an API that is down
// would sooner or later be given that very port, and be connected with itself.
func freePorts() (api, etcd int, err error) {
	for range 100 {
		api := 20000 + rand.IntN(10000)
		if free(api, api+1, api+2) {
			return api, api + 1, nil
		}
	}
	return 0, 0, errors.New("find free ports: none between 20000 and 30002")
}

func free(ports ...int) bool {
	for _, port := range ports {
		l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
		if err != nil {
			return false
		}
		_ = l.Close()
	}
	return true
}
