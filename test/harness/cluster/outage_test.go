package cluster_test

import (
	"context"
	"errors"
	"syscall"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/csi-addons/node-healer/test/harness"
	"github.com/csi-addons/node-healer/test/harness/cluster"
)

func TestTheAPIIsKilledAndComesBack(t *testing.T) {
	c := cluster.Start(t)
	node := cluster.Create(t, c, cluster.Node("outage-node"))
	t.Run("gone", func(t *testing.T) {
		c.KillAPI(t)
		_, err := get(t.Context(), c, node.Name)
		if !errors.Is(err, syscall.ECONNREFUSED) {
			t.Fatalf("an API that was killed answers with %v", err)
		}
	})
	uid, err := get(t.Context(), c, node.Name)
	harness.Must(t, err)
	if uid != string(node.UID) {
		t.Fatalf("it came back with another node: %s, not %s", uid, node.UID)
	}
}

func TestAPausedAPIAnswersNothing(t *testing.T) {
	c := cluster.Start(t)
	node := cluster.Create(t, c, cluster.Node("outage-node"))
	t.Run("paused", func(t *testing.T) {
		c.PauseAPI(t)
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		_, err := get(ctx, c, node.Name)
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("a paused API answers with %v", err)
		}
	})
	_, err := get(t.Context(), c, node.Name)
	harness.Must(t, err)
}

// get reads a node's UID.
func get(ctx context.Context, c *cluster.Cluster, name string) (string, error) {
	node, err := c.Admin().CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
	return string(node.GetUID()), err
}
