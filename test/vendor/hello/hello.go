// Package hello is a vendor's provider: the driver writes what is wrong with a volume into a
// file, and a program of the driver's mends it.
package hello

import (
	"cmp"
	"context"
	"errors"
	"io/fs"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/csi-addons/node-healer/pkg/healer"
)

// Driver is the CSI driver whose volumes these are.
const Driver = "test.csi.example.com"

var sessionLost = healer.Condition{
	Status: healer.Inaccessible, Reason: "HelloSessionLost", Acute: true, Message: "hello lost its session", Advice: "see hello's log",
}

type provider struct {
	tools healer.Tools
	dir   string
}

// New returns the provider; HELLO_DIR is for tests.
func New(tools healer.Tools) healer.Provider {
	return provider{tools, cmp.Or(os.Getenv("HELLO_DIR"), "/run/hello")}
}

func (provider) Name() string { return "hello" }

// Explain implements healer.Explainer.
func (provider) Explain() []healer.Condition { return []healer.Condition{sessionLost} }

// Collect implements healer.Collector. A volume without a file is one of which the driver has
// nothing to say.
func (p provider) Collect(ctx context.Context, c healer.Case) (healer.Evidence, error) {
	if c.Driver != Driver {
		return nil, nil
	}
	said, err := p.tools.ReadFile(ctx, p.dir, url.PathEscape(c.Volume.ID)+".health", 64)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if strings.TrimSpace(string(said)) == "panic" {
		panic("hello cannot read its own file")
	}
	return strings.TrimSpace(string(said)), err
}

func (p provider) Examine(c healer.Case) (healer.Finding, error) {
	if c.Driver != Driver || c.Evidence[p.Name()] != "lost" {
		return healer.Finding{Mine: c.Driver == Driver}, nil
	}
	staged, _ := c.Staged()
	cond := sessionLost
	cond.MountPoint, cond.Superblock = staged.Path, staged.Dev()
	return healer.Finding{Mine: true, Conditions: []healer.Condition{cond}, Steps: []healer.Step{{
		Name: "hello-again", Cost: healer.Reconnect, Heals: []healer.Reason{cond.Reason}, MountPoint: staged, Source: staged.Dev(),
		Run: func(ctx context.Context, revalidate func(context.Context) error) error {
			if err := revalidate(ctx); err != nil {
				return err
			}
			ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
			defer cancel()
			_, err := p.tools.Run(ctx, healer.Program{
				Path: p.dir + "/hello-again", OnHost: true, Args: []string{url.PathEscape(c.Volume.ID)}, Stdin: c.Volume.Secrets,
			})
			return err
		},
	}}}, nil
}
