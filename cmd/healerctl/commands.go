package main

import (
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/csi-addons/node-healer/pkg/api/adminpb"
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

func newList(dial dialer) *cobra.Command {
	var output string
	c := &cobra.Command{Use: "list", Short: "List the volumes of this node, without touching them", Args: cobra.NoArgs}
	outputFlag(c, &output, asWide)
	c.RunE = func(c *cobra.Command, _ []string) error {
		return dial(func(client adminpb.AdminClient) error {
			volumes, err := all(client.ListVolumes(c.Context(), &adminpb.ListVolumesRequest{}))
			if err != nil {
				return err
			}
			return printed(printVolumes(c.OutOrStdout(), output, volumes))
		})
	}
	return c
}

func newCheck(dial dialer) *cobra.Command {
	var output, driver string
	c := &cobra.Command{Use: "check VOLUME-ID", Short: "Check a volume, and change nothing", Long: "Check a volume, and change nothing.\n\n" + exitCodes, Args: cobra.ExactArgs(1)}
	outputFlag(c, &output)
	c.Flags().StringVar(&driver, "driver", "", "the CSI driver, where several have a volume of this ID")
	c.RunE = func(c *cobra.Command, args []string) error {
		return dial(func(client adminpb.AdminClient) error {
			done := progress(c.ErrOrStderr(), "checking")
			report, err := client.CheckVolume(c.Context(), &adminpb.CheckVolumeRequest{VolumeId: args[0], Driver: driver})
			done()
			return show(c, output, report, err)
		})
	}
	return c
}

func newHeal(dial dialer) *cobra.Command {
	var output, driver string
	var dryRun bool
	c := &cobra.Command{Use: "heal VOLUME-ID", Short: "Check a volume, and heal it where that is safe", Long: "Check a volume, and heal it where that is safe.\n\n" + exitCodes, Args: cobra.ExactArgs(1)}
	outputFlag(c, &output)
	c.Flags().StringVar(&driver, "driver", "", "the CSI driver, where several have a volume of this ID")
	c.Flags().BoolVar(&dryRun, "dry-run", false, "only say which steps would be tried")
	c.RunE = func(c *cobra.Command, args []string) error {
		return dial(func(client adminpb.AdminClient) error {
			done := progress(c.ErrOrStderr(), "healing")
			report, err := client.HealVolume(c.Context(), &adminpb.HealVolumeRequest{VolumeId: args[0], Driver: driver, DryRun: dryRun})
			done()
			return show(c, output, report, err)
		})
	}
	return c
}

// show prints a report. It returns errAbnormal for that of a sick volume.
func show(c *cobra.Command, output string, report *adminpb.VolumeReport, err error) error {
	if err != nil {
		return callError{err}
	}
	if err := printed(printReport(c.OutOrStdout(), output, report)); err != nil {
		return err
	}
	if report.GetVerdict() == "abnormal" {
		return errAbnormal
	}
	return nil
}

func printed(err error) error {
	if err != nil {
		return callError{err}
	}
	return nil
}
