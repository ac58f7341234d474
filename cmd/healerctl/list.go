package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/duration"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/csi-addons/node-healer/cmd/healerctl/internal/kube"
	"github.com/csi-addons/node-healer/cmd/healerctl/internal/why"
	"github.com/csi-addons/node-healer/pkg/api/adminpb"
	"github.com/csi-addons/node-healer/pkg/api/volumehealth"
)

// newList lists the volumes of the node, or what its nodes say of the cluster's claims. With
// no dialer there are claims only.
func newList(dial dialer) *cobra.Command {
	var flags clusterFlags
	c := &cobra.Command{Use: "list", Short: "List the volumes of this node, without touching them; with -A or -n the claims, and what their nodes say", Args: takes(0)}
	output := outputFlag(c, asWide)
	flags.add(c.Flags())
	everywhere := c.Flags().BoolP("all-namespaces", "A", false, "claims of all namespaces")
	c.RunE = func(c *cobra.Command, _ []string) error {
		if dial == nil || len(setOf(c.Flags(), "all-namespaces", "namespace", "context", "kubeconfig")) > 0 {
			return listClaims(c, flags, *everywhere, *output)
		}
		return dial(func(client adminpb.AdminClient) error {
			list, err := listVolumes(c.Context(), client)
			if err != nil {
				return err
			}
			data := make([]message, 0, len(list.volumes))
			for _, v := range list.volumes {
				data = append(data, message{v})
			}
			err = answer(c, *output, data, volumeTable(*output == asWide, list.volumes).print)
			_, _ = fmt.Fprint(c.ErrOrStderr(), list.note)
			return cmp.Or(err, list.unlisted)
		})
	}
	return c
}

func volumeTable(wide bool, volumes []*adminpb.Volume) *table {
	t := table{columns: 7}
	if wide {
		t.columns = 12
	}
	t.row("", "DRIVER", "VOLUME-ID", "PV", "POD", "PUBLISHED", "STAGED", "HEALTH", "CLAIM", "CHECKED", "DUE", "TRIES", "PATHS")
	for _, v := range volumes {
		var mounted, published, staged int
		var paths []string
		for _, p := range v.GetPaths() {
			paths = append(paths, p.GetPath())
			switch {
			case p.GetStaging():
				staged++
			case p.GetMounted():
				mounted++
				published++
			default:
				published++
			}
		}
		more := ""
		if v.GetOmitted() > 0 {
			more = "+"
		}
		pod := strings.Join(v.GetPods(), " ")
		if n := len(v.GetPods()); n > 1 && !wide {
			pod = fmt.Sprintf("%s +%d", v.GetPods()[0], n-1)
		}
		says := why.Health(v)
		if v.GetChecked() != nil && v.GetDue() == nil { // nothing renews it
			says += ", " + duration.HumanDuration(time.Since(v.GetChecked().AsTime())) + " ago"
		}
		t.row(cmp.Or(v.GetVerdict(), "not checked"),
			v.GetDriver(), v.GetVolumeId(), v.GetPv(), pod, fmt.Sprintf("%d/%d%s", mounted, published, more), strconv.Itoa(staged)+more, says,
			v.GetClaim(), when(v.GetChecked()), when(v.GetDue()), strconv.Itoa(int(v.GetTries())), strings.Join(paths, " "))
	}
	return &t
}

// when returns a time of the answer; empty for none.
func when(t *timestamppb.Timestamp) string {
	if t == nil {
		return ""
	}
	return t.AsTime().Format(time.RFC3339)
}

// claimHealth is what one node says of a claim's volume. It is empty for a claim of which
// none has said anything.
type claimHealth struct {
	Namespace string `json:"namespace"`
	Claim     string `json:"claim"`

	volumehealth.Value `json:",inline"`
}

// listClaims prints what the nodes say of all claims, the sick first.
func listClaims(c *cobra.Command, flags clusterFlags, everywhere bool, output string) error {
	if everywhere && flags.namespace != "" {
		return usage("--all-namespaces and --namespace exclude each other")
	}
	api, namespace, err := flags.connect()
	if err != nil {
		return err
	}
	if everywhere {
		namespace = metav1.NamespaceAll
	}
	claims := []claimHealth{}
	err = kube.EachMetadata(c.Context(), api, kube.Claims, namespace, "", func(claim *metav1.PartialObjectMetadata) {
		before := len(claims)
		for name, text := range claim.Annotations {
			one := claimHealth{Namespace: claim.Namespace, Claim: claim.Name}
			if strings.HasPrefix(name, volumehealth.Annotation) && json.Unmarshal([]byte(text), &one.Value) == nil {
				claims = append(claims, one)
			}
		}
		if len(claims) == before {
			claims = append(claims, claimHealth{Namespace: claim.Namespace, Claim: claim.Name})
		}
	})
	if err != nil {
		return refused(err)
	}
	rank := map[string]int{volumehealth.Unhealthy: -2, volumehealth.Healthy: -1}
	slices.SortFunc(claims, func(a, b claimHealth) int {
		return cmp.Or(cmp.Compare(rank[a.State], rank[b.State]), cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Claim, b.Claim), cmp.Compare(a.Node, b.Node))
	})
	t := table{columns: 5}
	if output == asWide {
		t.columns = 6
	}
	t.row("", "NAMESPACE", "CLAIM", "HEALTH", "NODE", "SINCE", "CHECKED")
	for _, one := range claims {
		says := one.State
		if checked, err := time.Parse(time.RFC3339, one.LastChecked); says != "" && (err != nil || time.Since(checked) >= volumehealth.StaleAfter) {
			says += ", not checked since " + cmp.Or(one.LastChecked, "?") // the last word of a node that is down is no news
		}
		t.row(cmp.Or(one.State, "not checked"), one.Namespace, one.Claim, says, one.Node, one.Since, one.LastChecked)
	}
	return answer(c, output, claims, t.print)
}
