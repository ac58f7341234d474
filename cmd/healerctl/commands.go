package main

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/csi-addons/node-healer/pkg/api/adminpb"
	"github.com/csi-addons/node-healer/pkg/api/v1alpha1"
)

// dialer calls the server.
type dialer func(call func(adminpb.AdminClient) error) error

// The values of --output.
const (
	asTable = "table"
	asWide  = "wide"
	asJSON  = "json"
	asYAML  = "yaml"
)

// isText reports whether an output is for people, and not data.
func isText(output string) bool { return output == asTable || output == asWide }

// ofVolume is in the help of what takes a volume.
const ofVolume = "VOLUME is a volume of this node: its ID, its PersistentVolume, its claim or a pod that has it as NAMESPACE/NAME, the pod's UID, or a path of it.\n\n"

// ofClaim is in the help of what takes a claim, too.
const ofClaim = "With pvc/NAME a VolumeHealJob is created, and the controller has the volume of that claim checked or healed on all nodes where running pods use it. Ctrl-C does not end the job.\n\n"

// outputFlag adds --output, which takes further values of this command, too.
func outputFlag(c *cobra.Command, output *string, further ...string) {
	values := append([]string{asTable}, append(further, asJSON, asYAML)...)
	last := len(values) - 1
	c.Flags().StringVarP(output, "output", "o", asTable, strings.Join(values[:last], ", ")+" or "+values[last])
	_ = c.RegisterFlagCompletionFunc("output", cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp))
	c.PreRunE = func(*cobra.Command, []string) error {
		if !slices.Contains(values, *output) {
			return fmt.Errorf("--output: %q is none of %s and %s", *output, strings.Join(values[:last], ", "), values[last])
		}
		return nil
	}
}

// newList lists the volumes of the node, or what its nodes say of the cluster's claims. With
// no dialer there are claims only.
func newList(dial dialer) *cobra.Command {
	var output string
	var claims claimList
	c := &cobra.Command{Use: "list", Short: "List the volumes of this node, without touching them; with -A or -n the claims, and what their nodes say", Args: cobra.NoArgs}
	outputFlag(c, &output, asWide)
	claims.add(c)
	c.RunE = func(c *cobra.Command, _ []string) error {
		if dial == nil || len(setOf(c.Flags(), "all-namespaces", "namespace", "context", "kubeconfig")) > 0 {
			return claims.run(c, output)
		}
		return dial(func(client adminpb.AdminClient) error {
			list, err := listVolumes(c.Context(), client)
			if err != nil {
				return err
			}
			err = printed(printVolumes(c.OutOrStdout(), output, list.volumes))
			_, _ = fmt.Fprint(c.ErrOrStderr(), list.note)
			return cmp.Or(err, list.unlisted)
		})
	}
	return c
}

func newCheck(dial dialer) *cobra.Command {
	var output, driver, path string
	var claims claimFlags
	c := &cobra.Command{Use: "check VOLUME|pvc/NAME", Short: "Check a volume, and change nothing", Long: "Check a volume, and change nothing.\n\n" + ofVolume + ofClaim + exitCodes, Args: cobra.ExactArgs(1), ValidArgsFunction: volumeNames(dial)}
	outputFlag(c, &output, asWide)
	c.Flags().StringVar(&driver, "driver", "", "the CSI driver, where several have a volume of this ID")
	c.Flags().StringVar(&path, "path", "", "a path of the volume, which says that it should be there, as a call of NodeHealer does")
	claims.add(c)
	c.RunE = func(c *cobra.Command, args []string) error {
		if is, err := claims.run(c, v1alpha1.ModeCheck, args[0], output); is || err != nil {
			return err
		}
		return dial(func(client adminpb.AdminClient) error {
			says := progress(c.ErrOrStderr(), "checking")
			report, err := client.CheckVolume(c.Context(), &adminpb.CheckVolumeRequest{VolumeId: args[0], Driver: driver, Path: path})
			says.done()
			return show(c, output, report, err)
		})
	}
	add(c, newCheckBucket())
	return c
}

func newHeal(dial dialer) *cobra.Command {
	var output, driver, path string
	var claims claimFlags
	c := &cobra.Command{Use: "heal VOLUME|pvc/NAME", Short: "Check a volume, and heal it where that is safe", Long: "Check a volume, and heal it where that is safe.\n\n" + ofVolume + ofClaim + exitCodes, Args: cobra.ExactArgs(1), ValidArgsFunction: volumeNames(dial)}
	outputFlag(c, &output, asWide)
	c.Flags().StringVar(&driver, "driver", "", "the CSI driver, where several have a volume of this ID")
	c.Flags().StringVar(&path, "path", "", "a path of the volume, which says that it should be there, as a call of NodeHealer does")
	c.Flags().BoolVar(&claims.dryRun, "dry-run", false, "only say which steps would be tried; of a claim: only check, or say which pods would be evicted")
	c.Flags().BoolVar(&claims.evict, "evict", false, "of a claim: evict the pods that use it where only a new stage helps and the cluster's settings allow it")
	claims.add(c)
	c.RunE = func(c *cobra.Command, args []string) error {
		if is, err := claims.run(c, claims.mode(), args[0], output); is || err != nil {
			return err
		}
		return dial(func(client adminpb.AdminClient) error {
			says := progress(c.ErrOrStderr(), "healing")
			report, err := client.HealVolume(c.Context(), &adminpb.HealVolumeRequest{VolumeId: args[0], Driver: driver, Path: path, DryRun: claims.dryRun})
			says.done()
			return show(c, output, report, err)
		})
	}
	return c
}

// show prints a report.
func show(c *cobra.Command, output string, report *adminpb.VolumeReport, err error) error {
	if err != nil && c.Context().Err() != nil {
		err = status.Error(codes.Canceled, "interrupted; the server finishes what it began")
	}
	if err != nil {
		return callError{err}
	}
	if err := printed(printReport(c.OutOrStdout(), output, report)); err != nil {
		return err
	}
	switch report.GetVerdict() {
	case "abnormal":
		return outcome(exitAbnormal)
	case "not judged":
		return outcome(exitNotJudged)
	}
	return nil
}

func printed(err error) error {
	if err != nil {
		return callError{err}
	}
	return nil
}
