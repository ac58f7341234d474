package nodehealer

import (
	"strings"
	"testing"
)

func TestNewSaysWhatIsMissing(t *testing.T) {
	if _, err := New(Config{Driver: "d", StateDir: t.TempDir()}); err == nil || !strings.Contains(err.Error(), "MaybeWorker") {
		t.Errorf("without MaybeWorker, with which each worker would be one more driver: %v", err)
	}
	MaybeWorker()
	for says, cfg := range map[string]Config{
		"StateDir":       {Driver: "d"},
		"driver name":    {StateDir: t.TempDir()},
		"root directory": {Driver: "d", StateDir: t.TempDir(), HostMountNamespace: "/proc/self/ns/mnt", KubeletRoot: "/no/such/kubelet"},
		"/no/such/ns":    {Driver: "d", StateDir: t.TempDir(), HostMountNamespace: "/no/such/ns"},
	} {
		if h, err := New(cfg); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%+v: %v does not say %q", cfg, err, says)
			_ = h.Close()
		}
	}
}
