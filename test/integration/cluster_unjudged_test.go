package integration

import (
	"strings"
	"testing"

	"github.com/csi-addons/node-healer/test/harness"
	"github.com/csi-addons/node-healer/test/harness/cluster"
)

// TestEmptyTargetByWhatTheAPISays: an empty target that no call names is abnormal while the API
// says that its pod wants it, not judged while the API does not answer, and nobody's business
// once the pod is being deleted.
func TestEmptyTargetByWhatTheAPISays(t *testing.T) {
	m := newMember(t)
	m.Start()
	v, goes := m.lost("wanted"), m.lost("goes")
	says := func(of *claimed, parts ...string) {
		t.Helper()
		said := ""
		defer func() {
			if t.Failed() {
				t.Log(said)
			}
		}()
		harness.Eventually(t, "a call by the staging path says "+strings.Join(parts, ", "), func() bool {
			said = m.answer(atStaging(of.Volume))
			return saysAll(said, parts...)
		})
	}
	m.subject(v.claim).Mode("check")
	says(v, "abnormal:", "NotMounted", string(v.pod.UID))
	cluster.Terminate(t, m.api, goes.pod)
	says(goes, "healthy:")
	table := m.Table()
	m.api.PauseAPI(t)
	says(v, "not judged:", string(v.pod.UID), "is empty and nothing shows that it is wanted", noAnswer)
	says(goes, "healthy:") // a pod that was seen to end does not begin again
	m.SameTable(table)
	m.api.ResumeAPI(t)
	says(v, "abnormal:", "NotMounted")
}
