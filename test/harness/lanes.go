package harness

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

const (
	// lanesEnv is the environment variable that says how many tests run at the same time.
	lanesEnv = "TEST_LANES"
	// queueEnv is set where the names of the tests to run come from standard input.
	queueEnv = "NODE_HEALER_TEST_QUEUE"
	// maxLanes is how many there are otherwise: tests wait for more than half of their time.
	maxLanes = 4
	// nameSize is that of one entry of the queue. A page of a pipe holds 32 of them: no
	// reader ever gets a part of one.
	nameSize = 128
)

// endOfTest is what a lane prints after each test.
var endOfTest = []byte("\x00end of test\n")

// lanes says how many tests run at the same time.
func lanes() int {
	if n, err := strconv.Atoi(os.Getenv(lanesEnv)); err == nil {
		return max(n, 1)
	}
	if os.Getenv(vm) != "" {
		return 1
	}
	return min(maxLanes, runtime.NumCPU()+2)
}

// runLanes runs the tests that flags ask for: first side by side all but those that are
// to run alone, and then those.
func runLanes(alone []string) int {
	if alone == nil || lanes() == 1 {
		return await(lane(nil))
	}
	tests, err := selected()
	switch {
	case err != nil:
		fmt.Fprintln(os.Stderr, err)
		return 1
	case len(tests) < 2:
		return await(lane(nil))
	}
	last := make([]string, 0, len(alone))
	beside := slices.DeleteFunc(tests, func(name string) bool {
		if !slices.Contains(alone, name) {
			return false
		}
		last = append(last, name)
		return true
	})
	code := max(runQueue(beside, lanes()), runQueue(last, 1))
	if code == 0 {
		fmt.Println("PASS")
	} else {
		fmt.Println("FAIL")
	}
	return code
}

// runQueue runs tests in so many lanes, each of which takes the next one when it is free.
func runQueue(tests []string, lanes int) (code int) {
	if len(tests) == 0 {
		return 0
	}
	queue, names, err := os.Pipe()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer queue.Close()
	codes := make([]int, min(lanes, len(tests)))
	var all sync.WaitGroup
	for i := range codes {
		all.Go(func() { codes[i] = await(lane(queue)) })
	}
	go func() {
		for _, name := range tests {
			entry := make([]byte, nameSize)
			copy(entry, name)
			_, _ = names.Write(entry)
		}
		_ = names.Close()
	}()
	all.Wait()
	// A lane that did not come to its end has left tests to the others, or to nobody.
	if n, _ := io.Copy(io.Discard, queue); n > 0 {
		fmt.Fprintf(os.Stderr, "%d tests did not run\n", n/nameSize)
		code = 1
	}
	return max(code, slices.Max(codes))
}

// lane is this test binary in namespaces of its own. With a queue it runs the tests that
// it gets from there, and its output comes test by test.
func lane(queue *os.File) (cmd *exec.Cmd, output *laneOutput) {
	cmd = again(atInit)
	cmd.SysProcAttr.Cloneflags = unix.CLONE_NEWNS | unix.CLONE_NEWPID
	cmd.SysProcAttr.Pdeathsig = unix.SIGTERM // asInit has to thaw
	if queue == nil {
		return cmd, nil
	}
	output = &laneOutput{}
	cmd.Env = append(cmd.Env, queueEnv+"=yes")
	cmd.Stdin, cmd.Stdout = queue, output
	return cmd, output
}

func await(cmd *exec.Cmd, output *laneOutput) int {
	err := cmd.Run()
	if output != nil {
		output.flush(output.text.Bytes()) // of a test that did not end
	}
	var exit *exec.ExitError
	switch {
	case err == nil:
		return 0
	case !errors.As(err, &exit):
		fmt.Fprintln(os.Stderr, err)
	}
	return 1
}

// laneOutput keeps what a lane prints until the test is over. Only its goroutine of
// package exec writes to it.
type laneOutput struct{ text bytes.Buffer }

// printing is held by the lane that prints.
var printing sync.Mutex

func (o *laneOutput) Write(p []byte) (int, error) {
	o.text.Write(p)
	for {
		test, rest, ended := bytes.Cut(o.text.Bytes(), endOfTest)
		if !ended {
			return len(p), nil
		}
		o.flush(test)
		o.text = *bytes.NewBuffer(bytes.Clone(rest))
	}
}

// flush prints what a test printed, but for the verdict that package testing gives after
// each of them.
func (o *laneOutput) flush(test []byte) {
	printing.Lock()
	defer printing.Unlock()
	test = bytes.TrimSuffix(bytes.TrimSuffix(test, []byte("PASS\n")), []byte("FAIL\n"))
	_, _ = os.Stdout.Write(test)
}

// runQueued runs the tests that flags ask for; in a lane those of the queue, one by one.
func runQueued(m *testing.M) (code int) {
	if os.Getenv(queueEnv) == "" {
		return m.Run()
	}
	asked := flag.Lookup("test.run").Value.String()
	for entry := make([]byte, nameSize); ; {
		if _, err := io.ReadFull(os.Stdin, entry); err != nil {
			return code
		}
		name := string(bytes.TrimRight(entry, "\x00"))
		if err := flag.Set("test.run", only(name, asked)); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		code = max(code, m.Run())
		_, _ = os.Stdout.Write(endOfTest)
	}
}

// selected lists the tests that flags ask for.
func selected() ([]string, error) {
	// -test.list takes no account of -test.run and -test.skip.
	out, err := exec.Command("/proc/self/exe", "-test.list=^Test").Output()
	if err != nil {
		return nil, fmt.Errorf("list the tests: %w", err)
	}
	asked, skipped := patterns("test.run"), patterns("test.skip")
	return slices.DeleteFunc(strings.Fields(string(out)), func(name string) bool {
		return len(asked) > 0 && !slices.ContainsFunc(asked, func(p string) bool {
			first, _, _ := strings.Cut(p, "/")
			return matches(first, name)
		}) || slices.ContainsFunc(skipped, func(p string) bool { return !strings.Contains(p, "/") && matches(p, name) })
	}), nil
}

// only is the pattern that flags ask for, of one test.
func only(name, asked string) string {
	if asked == "" {
		return "^" + name + "$"
	}
	var of []string
	for _, p := range alternatives(asked) {
		first, rest, sub := strings.Cut(p, "/")
		if !matches(first, name) {
			continue
		}
		if sub {
			rest = "/" + rest
		}
		of = append(of, "^"+name+"$"+rest)
	}
	return strings.Join(of, "|")
}

func patterns(name string) []string {
	value := flag.Lookup(name).Value.String()
	if value == "" {
		return nil
	}
	return alternatives(value)
}

// alternatives splits a pattern at each | that is in no brackets, as package testing does.
func alternatives(pattern string) []string {
	var all []string
	depth, from := 0, 0
	for i, c := range pattern {
		switch c {
		case '(', '[':
			depth++
		case ')', ']':
			depth--
		case '|':
			if depth == 0 {
				all, from = append(all, pattern[from:i]), i+1
			}
		}
	}
	return append(all, pattern[from:])
}

func matches(pattern, name string) bool {
	ok, err := regexp.MatchString(pattern, name)
	return err != nil || ok // package testing says what is wrong with it
}
