// mutate breaks one line of the product at a time, in what keeps data safe, and runs the
// tests that have to turn red: `make mutate`, as root, in a few minutes. A line that can be
// broken without a red test is protected by nobody.
//
//	go run ./test/mutate [-run REGEXP] [-all]
//
// The tree is copied first; nothing in it changes.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"strings"
	"time"
)

// timeout bounds one package's tests of a mutated tree, which may hang because of it, and
// withBuild those and what is built for them, which a busy machine takes long for.
const (
	timeout   = 4 * time.Minute
	withBuild = 15 * time.Minute
)

func main() {
	only := flag.String("run", "", "only the mutations whose names match")
	all := flag.Bool("all", false, "run all tests of each package that is named, instead of those that are")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, *only, *all); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1) //nolint:gocritic // the signals end with the process
	}
}

func run(ctx context.Context, only string, all bool) error {
	want, err := regexp.Compile(only)
	if err != nil {
		return fmt.Errorf("-run: %w", err)
	}
	tree, err := copyTree(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(tree) }()
	var bad int
	for _, m := range mutations {
		if !want.MatchString(m.name) {
			continue
		}
		killed, err := m.try(ctx, tree, all)
		switch {
		case err != nil:
			bad++
			fmt.Printf("NOT RUN   %s: %v\n", m.name, err)
		case killed == "":
			bad++
			fmt.Printf("SURVIVED  %s (%s)\n", m.name, m.file)
		default:
			fmt.Printf("killed    %s by %s\n", m.name, killed)
		}
	}
	if bad > 0 {
		return fmt.Errorf("%d mutations survived or were not run", bad)
	}
	return nil
}

// copyTree copies what git knows, and what is built for the tests.
func copyTree(ctx context.Context) (string, error) {
	tree, err := os.MkdirTemp("", "mutate-")
	if err != nil {
		return "", err
	}
	copying := exec.CommandContext(ctx, "sh", "-c", `git ls-files --cached --others --exclude-standard -z | xargs -0 cp --parents --no-dereference -t "$1"`, "sh", tree)
	copying.Dir, copying.Stderr = root(ctx), os.Stderr
	if err := copying.Run(); err != nil {
		return "", fmt.Errorf("copy the tree: %w", err)
	}
	return tree, nil
}

// root is the tree that this program is run in.
func root(ctx context.Context) string {
	out, err := exec.CommandContext(ctx, "go", "env", "GOMOD").Output()
	if err != nil {
		return "."
	}
	return filepath.Dir(strings.TrimSpace(string(out)))
}

// try breaks the line, runs the tests, and mends it again. It returns the tests that turned
// red; empty for none.
func (m mutation) try(ctx context.Context, tree string, all bool) (killed string, err error) {
	path := filepath.Join(tree, m.file)
	before, err := os.ReadFile(path)
	if err != nil {
		return "", err
	}
	after := strings.Replace(string(before), m.from, m.to, 1)
	if after == string(before) {
		return "", fmt.Errorf("%s has no %q", m.file, m.from)
	}
	if err := os.WriteFile(path, []byte(after), 0o600); err != nil {
		return "", err
	}
	defer func() {
		if back := os.WriteFile(path, before, 0o600); err == nil {
			err = back
		}
	}()
	ctx, cancel := context.WithTimeout(ctx, withBuild)
	defer cancel()
	args := []string{"test", "-count=1", "-timeout", timeout.String(), "./" + m.tests}
	if !all {
		args = append(args, "-run", "^("+m.run+")$")
	}
	test := exec.CommandContext(ctx, "go", args...)
	test.Dir = tree
	test.Env = append(os.Environ(), "CI=true")
	out, failed := test.CombinedOutput()
	if failed == nil {
		return "", nil
	}
	red := regexp.MustCompile(`(?m)^--- FAIL: (\w+)`).FindAllStringSubmatch(string(out), -1)
	if strings.Contains(string(out), "panic: test timed out") {
		return m.run + ", which never ended", nil
	}
	if len(red) == 0 {
		return "", fmt.Errorf("no test failed, but: %s", out)
	}
	var names []string
	for _, r := range red {
		names = append(names, r[1])
	}
	return strings.Join(names, ", "), nil
}
