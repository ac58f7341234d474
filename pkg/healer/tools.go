package healer

import (
	"context"
	"fmt"
	"net"
)

// Tools are all that a provider may use of the node, for Collect and for its steps;
// Examine uses none. Every call is bounded by its ctx, which must have a deadline, and
// may be made from several goroutines at once. Directories, programs and sockets are
// fixed in the provider's code, or by the operator; none comes from a request or a volume.
type Tools interface {
	// ReadFile reads at most limit bytes (1 MiB) of a file beneath a directory on the
	// host. No symbolic link in name is followed. It returns fs.ErrNotExist for a
	// file that is not there, and an error for a longer one, or one that is no regular
	// file.
	ReadFile(ctx context.Context, dir, name string, limit int) ([]byte, error)
	// Run runs a program and waits until it has ended. An exit code other than 0 is an
	// *ExitError. Its process group is killed when it has ended, and before ctx ends: when a
	// quarter of the time is left, and not before the last 5 seconds.
	//
	// The output is what it wrote to both of its outputs, in one line: without control
	// characters, and cut. It is for the provider to read, and never to be shown: the program
	// may quote what it knows.
	Run(ctx context.Context, p Program) (output string, err error)
	// Reach connects to an address (host:port, as in net.Dial with "tcp") from the
	// host's network, and hangs up. Its error says whether the connection was refused,
	// which a host that answers does (syscall.ECONNREFUSED).
	Reach(ctx context.Context, address string) error
	// Dial connects to a unix socket beneath kubelet's directory. The path may be known
	// to contain no symbolic link and to cross no mount: those are refused.
	Dial(ctx context.Context, socket string) (net.Conn, error)
}

// Program is one run of a program: no shell, no inherited environment.
type Program struct {
	// Path is absolute.
	Path string
	// OnHost runs the host's program in the host's mount namespace, instead of the
	// healer's own image. The network is the healer pod's in both.
	OnHost bool
	// Args and Env are seen by everyone on the node: no secrets.
	Args []string
	Env  []string
	// Stdin is written to the program as one "key=value" line for each key, sorted.
	Stdin Secrets
}

// Evidence is what one provider asked for itself, in a type of its own. Case.Evidence
// has it for Examine.
type Evidence any

// Collector is a provider that asks what only it knows, for each observation.
type Collector interface {
	Provider
	// Collect asks under the probe deadline, after the volume's probes, side by side with
	// calls about other volumes. While one outlives its deadline, no other begins about the
	// same storage. An error makes the volume abnormal, as one of Examine does: a driver
	// that cannot be asked is mostly no error, but evidence.
	Collect(ctx context.Context, c Case) (Evidence, error)
}

// ExitError is a program that ended with another exit code than 0.
type ExitError struct {
	Program string
	// Code is negative if a signal ended it.
	Code int
	// Text is its output, unless it was given secrets.
	Text string
}

func (e *ExitError) Error() string {
	how := fmt.Sprintf("ended with exit code %d", e.Code)
	if e.Code < 0 {
		how = "was ended by a signal"
	}
	if e.Text == "" {
		return e.Program + " " + how
	}
	return fmt.Sprintf("%s %s: %s", e.Program, how, e.Text)
}
