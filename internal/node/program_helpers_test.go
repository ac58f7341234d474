package node

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/csi-addons/node-healer/pkg/facts"
)

// shell returns a program that runs a script.
func shell(script string) facts.Program {
	return facts.Program{Path: "/bin/sh", Args: []string{"-c", script}, OnHost: true}
}

func within(t *testing.T, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), d)
	t.Cleanup(cancel)
	return ctx
}

// noneLeft waits until no process has the directory in its arguments.
func noneLeft(t *testing.T, root string) {
	t.Helper()
	eventually(t, "no process of the program is left", func() bool {
		entries, err := os.ReadDir("/proc")
		done(t, err)
		for _, e := range entries {
			if _, err := strconv.Atoi(e.Name()); err != nil {
				continue
			}
			if raw, _ := os.ReadFile(fmt.Sprintf("/proc/%s/cmdline", e.Name())); strings.Contains(string(raw), root) {
				return false
			}
		}
		return true
	})
}
