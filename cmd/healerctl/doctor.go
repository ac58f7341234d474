package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	utilversion "k8s.io/apimachinery/pkg/util/version"

	"github.com/csi-addons/node-healer/cmd/healerctl/internal/why"
	"github.com/csi-addons/node-healer/docs"
	"github.com/csi-addons/node-healer/internal/mount"
	"github.com/csi-addons/node-healer/internal/operation"
	"github.com/csi-addons/node-healer/internal/privilege"
	"github.com/csi-addons/node-healer/internal/worker"
	"github.com/csi-addons/node-healer/pkg/api/adminpb"
	"github.com/csi-addons/node-healer/pkg/facts"
)

// What doctor says of one thing. Less is no failure: node-healer works, and not in full.
const (
	fit     = "ok"
	less    = "less"
	missing = "missing"
)

// examined is one thing that node-healer needs of a node, and how it is.
type examined struct {
	Name  string `json:"name"`
	State string `json:"state"`
	// Text says what was seen, and of what is missing how to get it.
	Text string `json:"text"`
}

// What doctor looks at by workers: a directory may lie on a disk, or below a server, that does not
// answer.
var (
	lookAtKubelet = operation.Define("doctor-kubelet", operation.Spent, func(root string) ([]examined, error) { return propagation(root), nil })
	lookAtState   = operation.Define("doctor-state", operation.Spent, func(dir string) ([]examined, error) { return []examined{stateDir(dir)}, nil })
)

func newDoctor(dial dialer) *cobra.Command {
	var kubelet, state string
	c := &cobra.Command{Use: "doctor", Short: "Say whether this node has what node-healer needs, also before it is installed", Args: takes(0)}
	c.Long = c.Short + ". Run it where the server runs or will: as root on the node, or in its pod.\n\n" + exitCodes
	output := outputFlag(c)
	c.Flags().StringVar(&kubelet, "kubelet-root", "/var/lib/kubelet", "kubelet's root `directory`")
	c.Flags().StringVar(&state, "state-dir", "/var/lib/node-healer", "the server's `directory` for records and the audit log")
	c.RunE = func(c *cobra.Command, _ []string) error {
		pool, closePool := why.NewPool(nil)
		defer closePool(c.Context())
		release, _ := os.ReadFile("/proc/sys/kernel/osrelease")
		all := append([]examined{ownRights(), kernel(strings.TrimSpace(string(release)))}, lookAt(c.Context(), pool, lookAtKubelet, "kubelet", kubelet)...)
		socket, err := server(c.Context(), dial)
		if err != nil {
			return err // a wrong --endpoint
		}
		all = slices.Concat(all, []examined{socket}, lookAt(c.Context(), pool, lookAtState, "state", state), []examined{clock()})
		var t table
		code := outcome(0)
		for _, e := range all {
			t.row("", e.State, e.Name, e.Text)
			if e.State == missing {
				code = exitAbnormal
			}
		}
		return cmp.Or[error](answer(c, *output, all, t.print), code)
	}
	return c
}

func lookAt(ctx context.Context, pool *worker.Pool, op operation.Op[string, []examined], name, dir string) []examined {
	all, err := why.Ask(ctx, pool, op, dir)
	if err != nil {
		return []examined{{name, missing, dir + ": " + err.Error()}}
	}
	return all
}

func ownRights() examined {
	if uid := os.Geteuid(); uid != 0 {
		return examined{"rights", missing, fmt.Sprintf("this is user %d: run it as root", uid)}
	}
	// kubelet sets this for all containers. That process 1 has it says nothing: a node may itself
	// be a container of a pod.
	first, err := os.Readlink("/proc/1/ns/mnt")
	if ours, _ := os.Readlink("/proc/self/ns/mnt"); err == nil && first == ours && os.Getenv("KUBERNETES_SERVICE_HOST") != "" {
		return examined{"rights", missing, "process 1 is this container's and not the node's, whose mounts and processes cannot be seen from here: the pod needs hostPID: true"}
	}
	own, err := privilege.Own()
	if err != nil {
		return examined{"rights", missing, err.Error()}
	}
	// A seccomp filter that lets mounts be moved is none that matters.
	if lack, found := own.Lack(!mount.CanMove()); found {
		return examined{"rights", missing, lack.What + "; in a pod: " + lack.Fix}
	}
	return examined{"rights", fit, "root, with all capabilities that the work takes"}
}

// kernelLine is what docs/kernels.md says of kernels below a version.
var kernelLine = regexp.MustCompile(`(?m)^(?:A heal needs Linux|- Below) (\d+\.\d+).*$`)

// kernel goes by the version, as the page does: a distribution may have brought back more.
func kernel(release string) examined {
	runs, err := utilversion.ParseGeneric(release)
	if err != nil {
		return examined{"kernel", missing, fmt.Sprintf("its version cannot be told from %q", release)}
	}
	var lacks []string
	for _, line := range kernelLine.FindAllStringSubmatch(docs.Kernels, -1) {
		switch {
		case runs.AtLeast(utilversion.MustParseGeneric(line[1])):
		case !strings.HasPrefix(line[0], "- "):
			return examined{"kernel", missing, fmt.Sprintf("Linux %s; %s is needed: update it", release, line[1])}
		default:
			lacks = append(lacks, plain(strings.TrimPrefix(line[0], "- ")))
		}
	}
	if len(lacks) > 0 {
		return examined{"kernel", less, "Linux " + release + ". " + strings.Join(lacks, " ")}
	}
	return examined{"kernel", fit, "Linux " + release}
}

// propagation looks at the mounts of process 1, whose mount namespace the server works in.
func propagation(kubelet string) []examined {
	root, err := filepath.EvalSymlinks(kubelet)
	if err != nil {
		return []examined{{"kubelet", missing, err.Error() + ": kubelet's directory is where --kubelet-root says, and is here once the node has joined a cluster"}}
	}
	found := []examined{{"kubelet", fit, root}}
	say := func(state, text string) []examined { return append(found, examined{"propagation", state, text}) }
	file, err := os.Open("/proc/1/mountinfo")
	if err != nil {
		return say(missing, err.Error()+": in a pod, hostPID: true and privileged: true show the node's mounts")
	}
	defer func() { _ = file.Close() }()
	mounts, err := mount.Parse(file)
	if err != nil {
		return say(missing, err.Error())
	}
	var on facts.Mount
	for _, m := range mounts { // a later one of the same path hides the former
		if facts.Beneath(m.Path, root) && len(m.Path) >= len(on.Path) {
			on = m
		}
	}
	if on.Propagation.Shared == 0 {
		return say(missing, "the mount at "+on.Path+" is not shared: what a driver's pod mounts reaches neither the node nor other pods. mount --make-rshared "+on.Path+", at each start and before kubelet (systemd does it)")
	}
	return say(fit, "the mount at "+on.Path+" is shared")
}

// server asks whoever listens at the socket. Nobody does before the install.
func server(ctx context.Context, dial dialer) (examined, error) {
	text := "node-healer answers"
	err := dial(func(client adminpb.AdminClient) error {
		s, err := askStatus(ctx, client)
		for _, l := range s.GetLines() {
			if l.GetName() == "version" {
				text += ", version " + l.GetValue()
			}
		}
		return err
	})
	switch status.Code(err) {
	case codes.OK:
		return examined{"server", fit, text}, nil
	case codes.InvalidArgument:
		return examined{}, err
	}
	return examined{"server", less, wording(err)}, nil
}

// stateDir looks at a directory, or where it will be made, and writes nothing.
func stateDir(dir string) examined {
	there := dir
	info, err := os.Stat(there)
	for errors.Is(err, fs.ErrNotExist) && there != filepath.Dir(there) {
		there = filepath.Dir(there)
		info, err = os.Stat(there)
	}
	var space unix.Statfs_t
	switch {
	case err != nil:
		return examined{"state", missing, err.Error()}
	case !info.IsDir():
		return examined{"state", missing, there + " is no directory: name one by --state-dir"}
	}
	if err := unix.Faccessat(unix.AT_FDCWD, there, unix.W_OK|unix.X_OK, unix.AT_EACCESS); err != nil {
		return examined{"state", missing, fmt.Sprintf("%s: %v: the server keeps records and the audit log in %s, which has to be writable and survive a restart", there, err, dir)}
	}
	err = unix.Statfs(there, &space)
	switch { // a filesystem without a limit has zero of both; Bavail lacks what is kept for root, which the server is
	case err == nil && space.Blocks > 0 && space.Bfree == 0:
		return examined{"state", missing, "no space is left at " + there + ": no heal begins that the audit log cannot hold"}
	case err == nil && space.Files > 0 && space.Ffree == 0:
		return examined{"state", missing, "no inodes are left at " + there + ": no record and no audit log can be made"}
	}
	return examined{"state", fit, there + " is writable"}
}

// clock asks the kernel whether a program keeps it right (adjtimex(2)).
func clock() examined {
	var t unix.Timex
	now := time.Now().UTC().Format(time.RFC3339)
	switch state, err := unix.Adjtimex(&t); {
	case err != nil:
		return examined{"time", less, now + ", and whether it is right cannot be told: " + err.Error()}
	case state == unix.TIME_ERROR:
		return examined{"time", less, now + ", and nothing keeps it right: run chronyd or systemd-timesyncd, as tokens, certificates and a bucket's signatures depend on it"}
	}
	return examined{"time", fit, now + ", kept right"}
}
