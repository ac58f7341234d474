package engine

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"unicode"

	"github.com/csi-addons/node-healer/pkg/facts"
	"github.com/csi-addons/node-healer/pkg/healer"
)

// ToolHost is what NewTools needs of internal/node.
type ToolHost interface {
	ReadFile(ctx context.Context, dir, name string, limit int) ([]byte, error)
	RunProgram(ctx context.Context, p facts.Program) (facts.ProgramResult, error)
	Reach(ctx context.Context, address string) error
	Dial(ctx context.Context, socket string) (net.Conn, error)
}

// NewTools returns the tools of providers.
func NewTools(node ToolHost) healer.Tools { return &nodeTools{node} }

type nodeTools struct{ host ToolHost }

// maxFile is the longest file that the tools read, in bytes.
const maxFile = 1 << 20

func (t *nodeTools) ReadFile(ctx context.Context, dir, name string, limit int) ([]byte, error) {
	if err := bounded(ctx); err != nil {
		return nil, err
	}
	switch {
	case !filepath.IsAbs(dir):
		return nil, fmt.Errorf("%s is no absolute path", dir)
	case !filepath.IsLocal(name):
		return nil, fmt.Errorf("%s is not beneath %s", name, dir)
	case limit < 0 || limit > maxFile:
		return nil, fmt.Errorf("a limit of %d bytes is not between 0 and %d", limit, maxFile)
	}
	return t.host.ReadFile(ctx, dir, name, limit)
}

func (t *nodeTools) Run(ctx context.Context, p healer.Program) (output string, err error) {
	if err := bounded(ctx); err != nil {
		return "", err
	}
	if !filepath.IsAbs(p.Path) {
		return "", fmt.Errorf("%s is no absolute path", p.Path)
	}
	if p.Stdin.ShownIn(p.Args) || p.Stdin.ShownIn(p.Env) {
		return "", fmt.Errorf("a secret in the arguments or the environment of %s", p.Path)
	}
	stdin, err := secretLines(p.Stdin)
	if err != nil {
		return "", fmt.Errorf("%s: %w", p.Path, err)
	}
	r, err := t.host.RunProgram(ctx, facts.Program{
		Path: p.Path, Args: p.Args, Env: p.Env, OnHost: p.OnHost, Stdin: stdin,
	})
	if err != nil {
		return "", err
	}
	output = outputText(r)
	if r.Code == 0 {
		return output, nil
	}
	exit := &healer.ExitError{Program: p.Path, Code: r.Code, Text: output}
	if len(p.Stdin) > 0 { // it may quote them in any spelling
		exit.Text = "it was given secrets, so its output is not shown"
	}
	return output, exit
}

func (t *nodeTools) Reach(ctx context.Context, address string) error {
	if err := bounded(ctx); err != nil {
		return err
	}
	if _, _, err := net.SplitHostPort(address); err != nil {
		return err
	}
	return t.host.Reach(ctx, address)
}

func (t *nodeTools) Dial(ctx context.Context, socket string) (net.Conn, error) {
	if err := bounded(ctx); err != nil {
		return nil, err
	}
	if !filepath.IsAbs(socket) || filepath.Clean(socket) != socket {
		return nil, fmt.Errorf("%s is no absolute, clean path", socket)
	}
	return t.host.Dial(ctx, socket)
}

// bounded refuses what could wait for ever.
func bounded(ctx context.Context) error {
	if _, has := ctx.Deadline(); !has {
		return errors.New("a context without a deadline")
	}
	return ctx.Err()
}

// secretLines returns the secrets as a program reads them, one a line.
func secretLines(s healer.Secrets) ([]byte, error) {
	var b strings.Builder
	for _, key := range slices.Sorted(maps.Keys(s)) {
		if strings.ContainsAny(key, "=\n") || strings.Contains(s[key], "\n") {
			return nil, errors.New("a secret with a line break, or one with '=' in its key, cannot be passed to a program")
		}
		b.WriteString(key + "=" + s[key] + "\n")
	}
	return []byte(b.String()), nil
}

// outputText returns a program's output in one line.
func outputText(r facts.ProgramResult) string {
	words := strings.FieldsFunc(strings.ToValidUTF8(string(r.Output), ""), func(c rune) bool { return unicode.IsSpace(c) || !unicode.IsGraphic(c) })
	line := strings.Join(words, " ")
	if r.Cut {
		line += "…"
	}
	return line
}
