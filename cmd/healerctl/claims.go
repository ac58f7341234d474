package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/csi-addons/node-healer/pkg/api/volumehealth"
)

// claimsPerPage is how many claims one request asks for.
const claimsPerPage = 500

// staleAfter is more than twice as long as a node that has the volume takes to write anew.
const staleAfter = 3 * time.Hour

var claimsResource = schema.GroupVersionResource{Version: "v1", Resource: "persistentvolumeclaims"}

// claimHealth is what one node says of a claim's volume. It is empty for a claim of which
// none has said anything.
type claimHealth struct {
	Namespace string `json:"namespace"`
	Claim     string `json:"claim"`

	volumehealth.Value `json:",inline"`
}

// health is what the table says: the last word of a node that is down is no news.
func (c claimHealth) health() string {
	checked, err := time.Parse(time.RFC3339, c.LastChecked)
	if c.State == "" || err == nil && time.Since(checked) < staleAfter {
		return c.State
	}
	return c.State + ", not checked since " + cmp.Or(c.LastChecked, "?")
}

// claimList are the flags of list that are about claims.
type claimList struct {
	clusterFlags

	all bool
}

func (f *claimList) add(c *cobra.Command) {
	f.clusterFlags.add(c.Flags())
	c.Flags().BoolVarP(&f.all, "all-namespaces", "A", false, "claims of all namespaces")
}

func (f *claimList) run(c *cobra.Command, output string) error {
	if f.all && f.namespace != "" {
		return errors.New("--all-namespaces and --namespace exclude each other")
	}
	api, err := f.connect()
	if err != nil {
		return callError{status.Error(codes.Unavailable, err.Error())}
	}
	if f.all {
		api.namespace = metav1.NamespaceAll
	}
	claims, err := api.health(c.Context())
	if err != nil {
		return err
	}
	return printed(printClaims(c.OutOrStdout(), output, claims))
}

// health returns what the nodes say of all claims, the sick first.
func (a *cluster) health(ctx context.Context) (all []claimHealth, _ error) {
	for options := (metav1.ListOptions{Limit: claimsPerPage}); ; {
		page, err := a.metadata.Resource(claimsResource).Namespace(a.namespace).List(ctx, options)
		if err != nil {
			return nil, refused(err)
		}
		for _, claim := range page.Items {
			all = append(all, healthOf(claim.ObjectMeta)...)
		}
		if options.Continue = page.Continue; options.Continue == "" {
			break
		}
	}
	rank := map[string]int{volumehealth.Unhealthy: -2, volumehealth.Healthy: -1}
	slices.SortFunc(all, func(a, b claimHealth) int {
		return cmp.Or(cmp.Compare(rank[a.State], rank[b.State]), cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Claim, b.Claim), cmp.Compare(a.Node, b.Node))
	})
	return all, nil
}

func healthOf(claim metav1.ObjectMeta) (said []claimHealth) {
	for name, text := range claim.Annotations {
		if !strings.HasPrefix(name, volumehealth.Annotation) {
			continue
		}
		one := claimHealth{Namespace: claim.Namespace, Claim: claim.Name}
		if json.Unmarshal([]byte(text), &one.Value) == nil {
			said = append(said, one)
		}
	}
	if len(said) == 0 {
		said = []claimHealth{{Namespace: claim.Namespace, Claim: claim.Name}}
	}
	return said
}

func printClaims(w io.Writer, output string, claims []claimHealth) error {
	if !isText(output) {
		return printData(w, output, slices.Concat([]claimHealth{}, claims)) // [] and not null
	}
	var states []string
	for _, c := range claims {
		states = append(states, c.State)
	}
	return sickInColour(w, states, func(w io.Writer) error {
		table := tabwriter.NewWriter(w, 0, 0, 3, ' ', 0)
		columns := []string{"NAMESPACE", "CLAIM", "HEALTH", "NODE", "SINCE"}
		if output == asWide {
			columns = append(columns, "CHECKED")
		}
		row(table, columns...)
		for _, c := range claims {
			cells := []string{c.Namespace, c.Claim, c.health(), c.Node, c.Since}
			if output == asWide {
				cells = append(cells, c.LastChecked)
			}
			row(table, cells...)
		}
		return table.Flush()
	})
}
