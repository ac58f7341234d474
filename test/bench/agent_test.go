package bench

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/csi-addons/node-healer/test/harness"
)

// agentEnv makes a process an agent.
const agentEnv = "NODE_HEALER_BENCH_AGENT"

// agent is this binary once more, as a process of its own that measures, or
// makes what is measured.
type agent struct {
	t         testing.TB
	cmd       *exec.Cmd
	questions *json.Encoder
	answers   *json.Decoder
}

// errand is what the kind of agent work is called, with its question.
type errand struct {
	Job          string
	InspectQuery json.RawMessage
}

type result struct {
	Answer json.RawMessage
	Err    string
}

// job is something that an agent can be asked to do.
type job func(question json.RawMessage) (answer any, err error)

// does makes a job of a function.
func does[Q, A any](f func(Q) (A, error)) job {
	return func(question json.RawMessage) (any, error) {
		var q Q
		if err := json.Unmarshal(question, &q); err != nil {
			return nil, err
		}
		return f(q)
	}
}

// newAgent starts an agent, that ends with the test.
func newAgent(t testing.TB) *agent {
	t.Helper()
	return startAgent(t, &syscall.SysProcAttr{})
}

// newAgentPropagatedMounts starts an agent in a mount namespace of its own.
func newAgentPropagatedMounts(t testing.TB) *agent {
	t.Helper()
	return startAgent(t, &syscall.SysProcAttr{Unshareflags: unix.CLONE_NEWNS})
}

func startAgent(t testing.TB, attr *syscall.SysProcAttr) *agent {
	t.Helper()
	a := &agent{t: t, cmd: exec.Command("/proc/self/exe")}
	attr.Pdeathsig = syscall.SIGKILL
	a.cmd.SysProcAttr = attr
	a.cmd.Env = append(os.Environ(), agentEnv+"=1")
	a.cmd.Stderr = os.Stderr
	in, err := a.cmd.StdinPipe()
	harness.Must(t, err)
	out, err := a.cmd.StdoutPipe()
	harness.Must(t, err)
	a.questions, a.answers = json.NewEncoder(in), json.NewDecoder(out)
	harness.Must(t, a.cmd.Start())
	t.Cleanup(func() {
		_ = a.cmd.Process.Kill()
		_ = a.cmd.Wait()
	})
	return a
}

// ask has an agent do a job, and fails the test when it cannot.
func ask[A any](a *agent, job string, question any) A {
	a.t.Helper()
	var answer A
	raw, err := json.Marshal(question)
	harness.Must(a.t, err)
	harness.Must(a.t, a.questions.Encode(errand{Job: job, InspectQuery: raw}))
	var r result
	harness.Must(a.t, a.answers.Decode(&r))
	if r.Err != "" {
		a.t.Fatalf("%s: %s", job, r.Err)
	}
	harness.Must(a.t, json.Unmarshal(r.Answer, &answer))
	return answer
}

// namespace is the path of the agent's mount namespace.
func (a *agent) namespace() string {
	return "/proc/" + strconv.Itoa(a.cmd.Process.Pid) + "/ns/mnt"
}

// agentMain is an agent. In a process that was not started as one it returns at
// once, otherwise never.
func agentMain() {
	if os.Getenv(agentEnv) == "" {
		return
	}
	questions, answers := json.NewDecoder(os.Stdin), json.NewEncoder(os.Stdout)
	for {
		var e errand
		if err := questions.Decode(&e); err != nil {
			os.Exit(0) // the parent has ended
		}
		if err := answers.Encode(e.run()); err != nil {
			fmt.Fprintln(os.Stderr, "agent:", err)
			os.Exit(1)
		}
	}
}

func (e errand) run() result {
	do, known := jobs[e.Job]
	if !known {
		return result{Err: "no such job"}
	}
	answer, err := do(e.InspectQuery)
	raw, wrong := json.Marshal(answer)
	if err = errors.Join(err, wrong); err != nil {
		return result{Err: err.Error()}
	}
	return result{Answer: raw}
}
