package cluster

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/csi-addons/node-healer/pkg/api"
	"github.com/csi-addons/node-healer/pkg/healer"
)

// An event links to what its first condition means, and one of the loop to its own reason.
func TestMessagesLinkToWhatTheyMean(t *testing.T) {
	r := left(healer.TerminalError, "another try cannot help")
	_, messages := reported{}.after(r, conditionsOf(r.After), words(strings.Repeat("é", 2000)))
	want := []string{string(r.After.Conditions[0].Reason), "TerminalError"}
	for i, m := range messages {
		if text := m.linked(); !strings.HasSuffix(text, ". "+api.ConditionsURL+want[i]) || len(text) > maxTextBytes {
			t.Errorf("%s: %s", m.reason, text)
		}
	}
	if len(messages) != len(want) {
		t.Errorf("there are %d messages", len(messages))
	}
}

func TestMessagesAboutWhatIsLeftAlone(t *testing.T) {
	for reason, severity := range map[healer.LeftReason]string{
		healer.PermissionMissing: corev1.EventTypeWarning,
		healer.TerminalError:     corev1.EventTypeWarning,
	} {
		r := left(reason, "another try cannot help")
		r.Left.Detail = "who needs which right " + strings.Repeat("é", 2000)
		r.After.Steps = append(r.After.Steps, r.After.Steps[0])
		r.After.Steps[1].MountPoint.Path = "/" + strings.Repeat("é", 2000)
		m, _ := leftAlone(r, words("words "+strings.Repeat("é", 2000)))
		if m.severity != severity || len(m.text) > maxTextBytes {
			t.Errorf("%s: %d bytes: %+v", reason, len(m.text), m)
		}
		if !strings.HasSuffix(m.text, triedAgain) {
			t.Errorf("it does not say what it takes: %s", m.text)
		}
		if !strings.Contains(m.text, "who needs which right") {
			t.Errorf("it does not say what failed: %s", m.text)
		}
	}
}
