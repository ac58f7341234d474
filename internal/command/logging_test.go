package command

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"testing"

	"k8s.io/klog/v2"
)

// One object in a line, whatever is logged, and no more than -v asks for.
func TestLogAsJSON(t *testing.T) {
	var logged bytes.Buffer
	Common{Verbosity: 2, Format: logJSON}.set(&logged)
	defer klog.ClearLogger()
	klog.InfoS("a line", "volume_id", "a\nb")
	klog.V(2).InfoS("more")
	klog.V(3).InfoS("too much")
	klog.ErrorS(errors.New("no\nanswer"), "it failed")
	var got []map[string]any
	for lines := json.NewDecoder(&logged); ; {
		var line map[string]any
		err := lines.Decode(&line)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, line)
	}
	if len(got) != 3 || got[0]["msg"] != "a line" || got[0]["volume_id"] != "a\nb" || got[1]["msg"] != "more" || got[2]["level"] != "ERROR" || got[2]["err"] != "no\nanswer" {
		t.Errorf("%v", got)
	}
}

func TestUnknownLogFormat(t *testing.T) {
	if err := (Common{Format: "xml"}).check(); err == nil {
		t.Error("taken")
	}
}
