package engine

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/csi-addons/node-healer/pkg/facts"
	"github.com/csi-addons/node-healer/pkg/healer"
)

// toolHost remembers what it was asked, and answers what a test says.
type toolHost struct {
	asked  []string
	stdin  string
	result facts.ProgramResult
}

func (h *toolHost) ReadFile(_ context.Context, dir, name string, limit int) ([]byte, error) {
	h.asked = append(h.asked, fmt.Sprintf("%s/%s %d", dir, name, limit))
	return []byte("text"), nil
}

func (h *toolHost) RunProgram(_ context.Context, p facts.Program) (facts.ProgramResult, error) {
	h.asked, h.stdin = append(h.asked, p.Path), string(p.Stdin)
	return h.result, nil
}

func (h *toolHost) Reach(_ context.Context, address string) error {
	h.asked = append(h.asked, address)
	return nil
}

func (h *toolHost) Dial(_ context.Context, socket string) (net.Conn, error) {
	h.asked = append(h.asked, socket)
	return nil, nil
}

// callAll uses every tool once.
func callAll(ctx context.Context, tools healer.Tools) []error {
	_, read := tools.ReadFile(ctx, "/d", "f", 10)
	_, ran := tools.Run(ctx, healer.Program{Path: "/p"})
	_, dialed := tools.Dial(ctx, "/s")
	return []error{read, ran, tools.Reach(ctx, "h:1"), dialed}
}

func TestToolsNeedADeadline(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	ended, end := context.WithTimeout(t.Context(), time.Minute)
	end()
	defer cancel()
	for name, tc := range map[string]struct {
		ctx context.Context //nolint:containedctx // a row of a table
		may bool
	}{
		"bounded":      {ctx, true},
		"no deadline":  {t.Context(), false},
		"ended before": {ended, false},
	} {
		h := &toolHost{}
		for i, err := range callAll(tc.ctx, NewTools(h)) {
			if (err == nil) != tc.may {
				t.Errorf("%s, tool %d: %v", name, i, err)
			}
		}
		if asked := len(h.asked); asked != 0 && !tc.may || asked != 4 && tc.may {
			t.Errorf("%s: the host was asked %q", name, h.asked)
		}
	}
}

func TestToolsRefuseWhatCannotBeMeant(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	h := &toolHost{}
	tools := NewTools(h)
	read := func(dir, name string, limit int) error { _, err := tools.ReadFile(ctx, dir, name, limit); return err }
	run := func(p healer.Program) error { _, err := tools.Run(ctx, p); return err }
	dial := func(socket string) error { _, err := tools.Dial(ctx, socket); return err }
	secret := healer.Secrets{"password": "hunter22"}
	for name, err := range map[string]error{
		"a relative directory":        read("d", "f", 1),
		"a file elsewhere":            read("/d", "../f", 1),
		"an absolute name":            read("/d", "/f", 1),
		"no name":                     read("/d", "", 1),
		"too much":                    read("/d", "f", 1<<30),
		"less than nothing":           read("/d", "f", -1),
		"a relative program":          run(healer.Program{Path: "p"}),
		"a secret argument":           run(healer.Program{Path: "/p", Args: []string{"--key=hunter22"}, Stdin: secret}),
		"a secret in the environment": run(healer.Program{Path: "/p", Env: []string{"KEY=hunter22"}, Stdin: secret}),
		"a secret of two lines":       run(healer.Program{Path: "/p", Stdin: healer.Secrets{"a": "b\nc=d"}}),
		"a key that is two":           run(healer.Program{Path: "/p", Stdin: healer.Secrets{"a=b": "c"}}),
		"no port":                     tools.Reach(ctx, "host"),
		"a relative socket":           dial("s"),
		"a socket that climbs":        dial("/var/lib/kubelet/../s"),
	} {
		if err == nil || strings.Contains(err.Error(), "hunter22") || strings.Contains(err.Error(), "c=d") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if len(h.asked) > 0 {
		t.Errorf("the host was asked %q", h.asked)
	}
}

func TestRunWhatAProgramSays(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	secrets := healer.Secrets{"user": "me", "password": "hunter22", "key": "zz\tyy\x01xx"} // for it alone to read
	for name, tc := range map[string]struct {
		output string
		cut    bool
		want   string
	}{
		"nothing":            {"", false, ""},
		"lines":              {"one\ntwo\r\n\tthree\n", false, "one two three"},
		"control characters": {"a\x1b[31mb\x00c\u202ed\u200be\xff", false, "a [31mb c d e"},
		"cut":                {"all is wel", true, "all is wel…"},
	} {
		h := &toolHost{result: facts.ProgramResult{Output: []byte(tc.output), Cut: tc.cut}}
		out, err := NewTools(h).Run(ctx, healer.Program{Path: "/p", Stdin: secrets})
		if err != nil || out != tc.want {
			t.Errorf("%s: %q, %v", name, out, err)
		}
		if h.stdin != "key=zz\tyy\x01xx\npassword=hunter22\nuser=me\n" {
			t.Errorf("it read %q", h.stdin)
		}
	}
}

func TestRunWhatACodeMeans(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	run := func(code int) error {
		h := &toolHost{result: facts.ProgramResult{Code: code, Output: []byte("in use\n")}}
		_, err := NewTools(h).Run(ctx, healer.Program{Path: "/p"})
		return err
	}
	// What was given secrets may quote them in any spelling.
	h := &toolHost{result: facts.ProgramResult{Code: 3, Output: []byte("with aHVudGVyMjI=")}}
	_, err := NewTools(h).Run(ctx, healer.Program{Path: "/p", Stdin: healer.Secrets{"password": "hunter22"}})
	if err == nil || strings.Contains(err.Error(), "aHV") {
		t.Errorf("given secrets: %v", err)
	}
	if err := run(0); err != nil {
		t.Error(err)
	}
	for _, code := range []int{1, -1} {
		exit := (*healer.ExitError)(nil)
		if err := run(code); !errors.As(err, &exit) || exit.Code != code || exit.Text != "in use" {
			t.Errorf("code %d: %v", code, err)
		}
	}
}
