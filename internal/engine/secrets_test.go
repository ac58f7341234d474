package engine

import (
	"encoding/json"
	"encoding/xml"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"k8s.io/klog/v2"

	"github.com/csi-addons/node-healer/pkg/healer"
)

func TestSecretsAreNeverPrinted(t *testing.T) {
	const secret = "hunter2"
	s := healer.Secrets{"password": secret}
	v := healer.Volume{ID: "v", Secrets: s, Context: s}
	var out strings.Builder
	for _, format := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%X", "%d", "%T %[1]v", "%10v"} {
		for _, arg := range []any{s, &s, v, &v, healer.Case{Volume: v}, healer.Report{Volume: v}, []healer.Secrets{s}, map[string]healer.Secrets{"k": s}} {
			fmt.Fprintf(&out, format+"\n", arg)
		}
	}
	for _, arg := range []any{s, v, &v} {
		raw, err := json.Marshal(arg)
		if err != nil {
			t.Fatal(err)
		}
		out.Write(raw)
		raw, _ = xml.Marshal(arg)
		out.Write(raw)
		slog.New(slog.NewTextHandler(&out, nil)).Info("x", "arg", arg)
		slog.New(slog.NewJSONHandler(&out, nil)).Info("x", "arg", arg)
		fmt.Fprintln(&out, fmt.Errorf("failed with %v", arg), klog.KObjSlice(arg))
	}
	for _, bad := range []string{secret, "password", fmt.Sprintf("%x", secret), fmt.Sprintf("%X", secret)} {
		if strings.Contains(out.String(), bad) {
			t.Errorf("%q was printed", bad)
		}
	}
}
