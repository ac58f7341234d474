package gateway

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"
)

const (
	// problem is the type of the condition, as admission.yaml has it: True is bad.
	problem = "CSIVolumeProblem"
	// noProblem is its reason while it is False.
	noProblem = "NoVolumeProblem"
	// problemEvery is how often the server is asked, problemAfter for how long volumes have
	// to be inaccessible before the Node says so.
	problemEvery, problemAfter = 15 * time.Second, time.Minute
	// problemAgain is how often a problem is written anew: a Node that was registered again has lost it.
	problemAgain = 5 * time.Minute
	// volumesMetric has the node's volumes by driver, condition and status, as far as they were
	// checked: allMetric is 1 once all were. A page without that is of a server whose loop is off.
	volumesMetric, allMetric = "node_healer_volumes", "node_healer_loop_checked_all"
)

// nodeCondition says on the Node of this gateway that volumes cannot be used there. The Node
// has no such condition before the first problem, nor after this process has ended.
type nodeCondition struct {
	node   string
	nodes  typedcorev1.NodeInterface
	server func(ctx context.Context, path string) (*http.Response, error)
	// since has since when volumes are inaccessible.
	since map[inaccessible]time.Time
	// said is what the Node has; nil: nothing. It was read if read is true.
	said *corev1.NodeCondition
	read bool
	// logged is the error of the last update; empty: it had none.
	logged string
}

// inaccessible are the volumes of a driver that cannot be used for a reason.
type inaccessible struct{ driver, reason, status string }

// KeepNodeCondition keeps the condition on a Node until ctx ends, and then removes it.
func (m *Metrics) KeepNodeCondition(ctx context.Context, api *rest.Config, node string) error {
	client, err := typedcorev1.NewForConfig(api)
	if err != nil {
		return fmt.Errorf("gateway: %w", err)
	}
	n := nodeCondition{node: node, nodes: client.Nodes(), server: m.ask, since: map[inaccessible]time.Time{}}
	n.run(ctx)
	return nil
}

func (n *nodeCondition) run(ctx context.Context) {
	wait.UntilWithContext(ctx, func(ctx context.Context) {
		logged := ""
		if err := n.update(ctx); err != nil {
			if logged = err.Error(); logged != n.logged && ctx.Err() == nil {
				klog.ErrorS(err, "Cannot keep the condition of the Node")
			}
		}
		n.logged = logged
	}, problemEvery)
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), registerTimeout)
	defer cancel()
	if err := n.remove(ctx); err != nil {
		klog.ErrorS(err, "Cannot remove the condition of the Node")
	}
}

// remove takes the condition off the Node, also one of a process that was killed: nobody keeps it.
func (n *nodeCondition) remove(ctx context.Context) error {
	if n.read && n.said == nil {
		return nil
	}
	err := n.write(ctx, map[string]any{"$patch": "delete", "type": problem})
	if err == nil {
		n.said, n.read = nil, true
		clear(n.since)
	}
	return err
}

// errLoopOff is of a server that checks nothing by itself.
var errLoopOff = errors.New("the server's metrics: its loop is off")

// update writes the condition if it changes, and a problem again after a while. What was said
// stands while the server does not answer, or has not checked all volumes since its start: nobody
// knows better.
func (n *nodeCondition) update(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, registerTimeout)
	defer cancel()
	counts, all, err := n.ask(ctx)
	switch {
	case errors.Is(err, errLoopOff): // nothing would ever end what was said
		return errors.Join(err, n.remove(ctx))
	case err != nil:
		return err
	}
	now := metav1.Now()
	if !n.read {
		node, err := n.nodes.Get(ctx, n.node, metav1.GetOptions{})
		if err != nil {
			return err
		}
		n.read = true
		if at := slices.IndexFunc(node.Status.Conditions, func(c corev1.NodeCondition) bool { return c.Type == problem }); at >= 0 {
			n.said = &node.Status.Conditions[at] // by a process that was killed
		}
	}
	maps.DeleteFunc(n.since, func(k inaccessible, _ time.Time) bool { return counts[k] == 0 && all })
	lasting := map[inaccessible]int{}
	for k, count := range counts {
		if n.since[k].IsZero() {
			n.since[k] = now.Time
		}
		if now.Sub(n.since[k]) >= problemAfter {
			lasting[k] = count
		}
	}
	// Volumes that cannot be used for another reason than a moment ago do not work again, nor do
	// those of which a process that was killed has said so.
	if said := n.said != nil && n.said.Status == corev1.ConditionTrue; said && len(lasting) == 0 {
		lasting = counts
	}
	next := conditionOf(lasting)
	if next.Status == corev1.ConditionFalse && (n.said == nil || !all && n.said.Status == corev1.ConditionTrue) {
		return nil
	}
	next.LastHeartbeatTime, next.LastTransitionTime = now, now
	if n.said != nil && n.said.Status == next.Status {
		lost := next.Status == corev1.ConditionTrue && now.Sub(n.said.LastHeartbeatTime.Time).Abs() >= problemAgain
		if n.said.Reason == next.Reason && n.said.Message == next.Message && !lost {
			return nil
		}
		next.LastTransitionTime = n.said.LastTransitionTime
	}
	if err := n.write(ctx, next); err != nil {
		return err
	}
	n.said = &next
	return nil
}

// ask returns how many volumes of the node cannot be used, and whether the server has checked
// all of them since its start.
func (n *nodeCondition) ask(ctx context.Context) (counts map[inaccessible]int, all bool, err error) {
	answer, err := n.server(ctx, metricsPath)
	if err != nil {
		return nil, false, err
	}
	defer func() { _ = answer.Body.Close() }()
	if answer.StatusCode != http.StatusOK {
		return nil, false, fmt.Errorf("the server's metrics: %s", answer.Status)
	}
	parser := expfmt.NewTextParser(model.LegacyValidation)
	page, err := parser.TextToMetricFamilies(io.LimitReader(answer.Body, maxMetricsBytes))
	if err != nil {
		return nil, false, fmt.Errorf("the server's metrics: %w", err)
	}
	if page[allMetric] == nil {
		return nil, false, errLoopOff
	}
	for _, m := range page[allMetric].GetMetric() {
		all = m.GetGauge().GetValue() == 1
	}
	counts = map[inaccessible]int{}
	for _, m := range page[volumesMetric].GetMetric() {
		labels := map[string]string{}
		for _, l := range m.GetLabel() {
			labels[l.GetName()] = l.GetValue()
		}
		k := inaccessible{labels["driver"], labels["condition"], labels["status"]}
		if n := int(m.GetGauge().GetValue()); n > 0 && (k.status == "Inaccessible" || k.status == "DataLoss") {
			counts[k] = n
		}
	}
	return counts, all, nil
}

// conditionOf puts counts into words, the worst first.
func conditionOf(counts map[inaccessible]int) corev1.NodeCondition {
	c := corev1.NodeCondition{Type: problem, Status: corev1.ConditionFalse, Reason: noProblem, Message: "the node's volumes can be used"}
	worst := slices.SortedFunc(maps.Keys(counts), func(a, b inaccessible) int { // DataLoss comes before Inaccessible
		return cmp.Or(cmp.Compare(a.status, b.status), cmp.Compare(counts[b], counts[a]), cmp.Compare(a.reason, b.reason), cmp.Compare(a.driver, b.driver))
	})
	var all []string
	for _, k := range worst {
		all = append(all, fmt.Sprintf("%s: %d of %s", k.reason, counts[k], k.driver))
	}
	if len(all) > 0 {
		c.Status, c.Reason, c.Message = corev1.ConditionTrue, worst[0].reason, strings.Join(all, ", ")
	}
	return c
}

// write merges a condition into those of the Node, by its type.
func (n *nodeCondition) write(ctx context.Context, condition any) error {
	change, err := json.Marshal(map[string]any{"status": map[string]any{"conditions": []any{condition}}})
	if err != nil {
		return err
	}
	_, err = n.nodes.Patch(ctx, n.node, types.StrategicMergePatchType, change, metav1.PatchOptions{}, "status")
	return err
}
