package cluster

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/client-go/kubernetes/scheme"

	"github.com/csi-addons/node-healer/test/harness"
)

// StorePods writes pods of one namespace into etcd as the API would have, until the test
// ends: hundreds of a megabyte take it minutes, as it validates and tracks each field.
func (c *Cluster) StorePods(tb testing.TB, namespace string, pods ...*corev1.Pod) {
	tb.Helper()
	prefix := "/registry/pods/" + namespace + "/"
	tb.Cleanup(func() {
		c.ask(tb, "deleterange", map[string][]byte{"key": []byte(prefix), "range_end": []byte(prefix[:len(prefix)-1] + "0")}) // "0" follows "/"
	})
	stored := protobuf.NewSerializer(scheme.Scheme, scheme.Scheme)
	for _, pod := range pods {
		pod.APIVersion, pod.Kind = "v1", "Pod"
		pod.UID, pod.CreationTimestamp = uuid.NewUUID(), metav1.Now()
		var value bytes.Buffer
		harness.Must(tb, stored.Encode(pod, &value))
		c.ask(tb, "put", map[string][]byte{"key": []byte(prefix + pod.Name), "value": value.Bytes()})
	}
}

// ask calls etcd's own API.
func (c *Cluster) ask(tb testing.TB, method string, question any) {
	tb.Helper()
	body, err := json.Marshal(question)
	harness.Must(tb, err)
	answer, err := http.Post(fmt.Sprintf("http://127.0.0.1:%d/v3/kv/%s", c.etcdPort, method), "application/json", bytes.NewReader(body))
	harness.Must(tb, err)
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		tb.Fatalf("etcd answers %s to %s", answer.Status, method)
	}
}
