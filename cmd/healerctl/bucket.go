package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/csi-addons/node-healer/internal/printable"
	"github.com/csi-addons/node-healer/pkg/bucket"
)

// bucketGap is the time between two checks of --watch: servers may charge for each.
const bucketGap = time.Minute

// bucketOutcomes are the exit codes of verdicts.
var bucketOutcomes = map[string]error{bucket.Healthy: nil, bucket.Abnormal: outcome(exitAbnormal), bucket.NotJudged: outcome(exitNoAnswer)}

func newCheckBucket() *cobra.Command {
	var dir string
	var watch bool
	var flags bucket.Bucket
	c := &cobra.Command{Use: "bucket --secret-dir DIR", Short: "Check a bucket of S3 with the credentials of a mounted Secret", Args: takes(0)}
	c.Long = c.Short + ", by one question that changes nothing. A denial counts after 30 s, and a bucket is gone after 60 s: it asks again.\n\n" + exitCodes
	output := outputFlag(c)
	c.Flags().StringVar(&dir, "secret-dir", "", "where the Secret of a BucketAccess (COSI) is mounted, or one with AWS's usual names")
	c.Flags().StringVar(&flags.Name, "bucket", "", "the bucket's name, where the Secret has none")
	c.Flags().StringVar(&flags.Prefix, "prefix", "", "what the names of the objects begin with, where access is for these only")
	c.Flags().BoolVar(&flags.WriteOnly, "write-only", false, "access does not allow to list: a denial then is healthy")
	c.Flags().BoolVar(&watch, "watch", false, "check every minute, and print whatever changes, until interrupted")
	c.RunE = func(c *cobra.Command, _ []string) error {
		switch {
		case dir == "":
			return usage("required flag(s) \"secret-dir\" not set")
		case len(setOf(c.Flags(), "endpoint")) > 0:
			return usage("--endpoint: only with a VOLUME-ID; that of a bucket is in the Secret")
		}
		for said := ""; ; {
			_, done := progress(c.ErrOrStderr(), "checking")
			report := checkDir(c.Context(), dir, flags)
			done()
			switch {
			case c.Context().Err() != nil && watch:
				return nil
			case c.Context().Err() != nil:
				return status.Error(codes.Canceled, "interrupted")
			case said != report.Message:
				if watch && *output == asYAML {
					_, _ = fmt.Fprintln(c.OutOrStdout(), "---") // or the next report's keys are twice in one document
				}
				if err := answer(c, *output, report, func(w io.Writer) error { return printBucket(w, watch, report) }); err != nil {
					return err
				}
				said = report.Message
			}
			if !watch {
				return bucketOutcomes[report.Verdict]
			}
			select {
			case <-time.After(bucketGap):
			case <-c.Context().Done():
			}
		}
	}
	return c
}

// checkDir reads the Secret anew, which may have changed, and checks.
func checkDir(ctx context.Context, dir string, flags bucket.Bucket) bucket.Report {
	b, err := bucket.ReadDir(dir)
	if err != nil {
		return bucket.Unusable(err)
	}
	b.Name, b.Prefix, b.WriteOnly = cmp.Or(flags.Name, b.Name), flags.Prefix, flags.WriteOnly
	return bucket.Check(ctx, b)
}

func printBucket(w io.Writer, watch bool, r bucket.Report) error {
	text := printable.Line(r.Message, maxCellBytes)
	if watch {
		text = time.Now().Format(time.TimeOnly) + "  " + text
	}
	_, err := fmt.Fprintln(w, painted(w, r.Verdict, text))
	return err
}
