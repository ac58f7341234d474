package main

import (
	"cmp"
	"io"
	"strings"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/csi-addons/node-healer/pkg/api/adminpb"
)

type dialer func(call func(adminpb.AdminClient) error) error

// ofVolume is in the help of what takes a volume.
const ofVolume = "VOLUME is a volume of this node: its ID, its PersistentVolume, its claim or a pod that has it as NAMESPACE/NAME, the pod's UID, or a path of it.\n\n"

// ofClaim is in the help of what takes a claim, too.
const ofClaim = "With pvc/NAME a VolumeHealJob is created, and the controller has the volume of that claim checked or healed on all nodes where running pods use it. Ctrl-C does not end the job.\n\n"

func newCheck(dial dialer, heals bool) *cobra.Command {
	var request adminpb.HealVolumeRequest
	var claims claimFlags
	name, short, doing := "check", "Check a volume, and change nothing", "checking"
	if heals {
		name, short, doing = "heal", "Check a volume, and heal it where that is safe", "healing"
	}
	c := &cobra.Command{Use: name + " VOLUME|pvc/NAME", Short: short, Long: short + ".\n\n" + ofVolume + ofClaim + exitCodes, Args: takes(1), ValidArgsFunction: volumeNames(dial)}
	output := outputFlag(c, asWide)
	c.Flags().StringVar(&request.Driver, "driver", "", "the CSI driver, where several have a volume of this ID")
	c.Flags().StringVar(&request.Path, "path", "", "a path of the volume, which says that it should be there, as a call of NodeHealer does")
	if heals {
		c.Flags().BoolVar(&request.DryRun, "dry-run", false, "only say which steps would be tried; of a claim: only check, or say which pods would be evicted")
		c.Flags().BoolVar(&claims.evict, "evict", false, "of a claim: evict the pods that use it where only a new stage helps and the cluster's settings allow it")
	} else {
		add(c, newCheckBucket())
	}
	claims.add(c)
	c.RunE = func(c *cobra.Command, args []string) error {
		claim, isClaim := strings.CutPrefix(args[0], "pvc/")
		only, set := "pvc/NAME", setOf(c.Flags(), "kubeconfig", "context", "namespace", "wait", "timeout", "evict")
		if isClaim {
			only, set = "a VOLUME-ID", setOf(c.Flags(), "driver", "path", "endpoint")
		}
		switch {
		case len(set) > 0:
			return usage("%s: only with %s", strings.Join(set, ", "), only)
		case isClaim:
			return claims.run(c, !heals || request.GetDryRun(), claim, *output)
		}
		request.VolumeId = args[0]
		return dial(func(client adminpb.AdminClient) (err error) {
			var report *adminpb.VolumeReport
			_, done := progress(c.ErrOrStderr(), doing)
			if heals {
				report, err = client.HealVolume(c.Context(), &request)
			} else {
				report, err = client.CheckVolume(c.Context(), &adminpb.CheckVolumeRequest{VolumeId: request.GetVolumeId(), Driver: request.GetDriver(), Path: request.GetPath()})
			}
			done()
			if err != nil && c.Context().Err() != nil {
				err = status.Error(codes.Canceled, "interrupted; the server finishes what it began")
			}
			if err == nil {
				err = answer(c, *output, message{report}, func(w io.Writer) error { return printReport(w, *output == asWide, report) })
			}
			return cmp.Or(err, outcomes[report.GetVerdict()])
		})
	}
	return c
}

// outcomes are the exit codes of a volume's verdicts.
var outcomes = map[string]error{"abnormal": outcome(exitAbnormal), "not judged": outcome(exitNotJudged)}
