package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/csi-addons/node-healer/cmd/healerctl/internal/why"
	"github.com/csi-addons/node-healer/internal/printable"
	"github.com/csi-addons/node-healer/pkg/api/adminpb"
)

// newWhy returns the command that asks the cluster, and on the pod's node, as root, that. With
// no dialer it asks no node.
func newWhy(dial dialer) *cobra.Command {
	var flags clusterFlags
	node := why.Node{Volumes: func(ctx context.Context) (seen []*adminpb.Volume, err error) {
		err = dial(func(client adminpb.AdminClient) error {
			l, err := listVolumes(ctx, client)
			seen = l.volumes
			return cmp.Or(err, l.unlisted)
		})
		if err != nil {
			err = errors.New(wording(err))
		}
		return seen, err
	}}
	c := &cobra.Command{Use: "why pod/NAME|bucket/NAME", Short: "Say why a pod does not start, stop or read, or where a BucketClaim stands", Args: takes(1)}
	c.Long = c.Short + ". It changes nothing, reads with the rights of the kubeconfig, and says what it may not read. As root on the pod's node it says what only that knows.\n\n" + exitCodes
	output := outputFlag(c)
	flags.add(c.Flags())
	if dial != nil {
		c.Flags().StringVar(&node.Name, "node", "", "the `name` of this node; empty: $NODE_NAME, else the host's")
		c.Flags().StringVar(&node.KubeletRoot, "kubelet-root", "/var/lib/kubelet", "kubelet's `directory` on this node")
	}
	c.RunE = func(c *cobra.Command, args []string) error {
		kind, name, _ := strings.Cut(args[0], "/")
		ask := map[string]func(context.Context, why.Config, string) (*why.Answer, error){"pod": why.Pod, "bucket": why.Bucket}[kind]
		if ask == nil || name == "" {
			return usage("name a pod/NAME or a bucket/NAME")
		}
		api, namespace, err := flags.connect()
		if err != nil {
			return err
		}
		asks := why.Config{Client: api, Namespace: namespace, Program: c.Root().DisplayName()}
		if dial != nil && os.Geteuid() == 0 {
			host, _ := os.Hostname()
			node.Name = cmp.Or(node.Name, os.Getenv("NODE_NAME"), host)
			asks.Node = &node
		}
		_, done := progress(c.ErrOrStderr(), "asking")
		found, err := ask(c.Context(), asks, name)
		done()
		if err != nil {
			return refused(err)
		}
		code := outcome(0)
		switch {
		case len(found.Causes) > 0:
			code = exitAbnormal
		case len(found.Unread) > 0:
			code = exitNoAnswer
		}
		return cmp.Or[error](answer(c, *output, found, func(w io.Writer) error { return printWhy(w, found) }), code)
	}
	return c
}

func printWhy(w io.Writer, a *why.Answer) error {
	var lines []string
	say := func(format string, args ...any) {
		lines = append(lines, printable.Line(fmt.Sprintf(format, args...), 2*maxCellBytes))
	}
	say("%s", a.Subject)
	if len(a.Causes) == 0 {
		say("nothing was found that is in the way")
	}
	for i, cause := range a.Causes {
		if i == 1 {
			say("Also:")
		}
		say("%s: %s", cause.Reason, cause.Message)
		if i == 0 {
			lines[len(lines)-1] = painted(w, "abnormal", lines[len(lines)-1])
		}
		for n, toDo := range cause.ToDo {
			lines = append(lines, "  "+printable.Line(fmt.Sprintf("%d. %s", n+1, toDo), maxCellBytes))
		}
	}
	for _, unread := range a.Unread {
		say("Not read: %s", unread)
	}
	if a.OnNode != "" {
		say("What hangs or is left behind only the node knows: %s", a.OnNode)
	}
	_, err := fmt.Fprintln(w, strings.Join(lines, "\n"))
	return err
}
