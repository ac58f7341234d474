package harness

import (
	"os"
	"testing"
)

// fullEnv is the environment variable with which `make test-full` runs every test in its
// long form.
const fullEnv = "TEST_FULL"

// Full says whether tests run in their long form: every kind of volume, and every way to
// unpublish, at every instant. In a virtual machine only the tests run that are asked for
// by name.
func Full() bool { return os.Getenv(fullEnv) != "" || os.Getenv(vm) != "" }

// NeedsFull skips what takes long and is for a night or a release, storms and soaks: each
// heal, refusal, attack and kill instant has another test.
func NeedsFull(t testing.TB) {
	t.Helper()
	if !Full() {
		t.Skip("only in make test-full")
	}
}
