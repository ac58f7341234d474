package kubetest

import (
	"bytes"
	"flag"
	"io"
	"sync"
	"testing"

	"k8s.io/klog/v2"
)

// CaptureLog returns what is logged from now on, with that verbosity.
func CaptureLog(t *testing.T, verbosity string) (logged func() string) {
	t.Helper()
	var mu sync.Mutex
	var log bytes.Buffer
	var flags flag.FlagSet
	klog.InitFlags(&flags)
	set := func(name, value string) {
		if err := flags.Set(name, value); err != nil {
			t.Fatal(err)
		}
	}
	set("logtostderr", "false")
	set("one_output", "true") // and no error once more among warnings
	set("v", verbosity)
	klog.SetOutput(writer(func(p []byte) (int, error) {
		mu.Lock()
		defer mu.Unlock()
		return log.Write(p)
	}))
	t.Cleanup(func() {
		set("v", "0")
		set("one_output", "false")
		set("logtostderr", "true")
		klog.Flush()
		klog.SetOutput(io.Discard)
	})
	return func() string {
		klog.Flush()
		mu.Lock()
		defer mu.Unlock()
		return log.String()
	}
}

type writer func([]byte) (int, error)

func (w writer) Write(p []byte) (int, error) { return w(p) }
