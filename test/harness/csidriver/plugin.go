package csidriver

import (
	"context"
	"errors"
	"io/fs"
	"net"
	"os"
	"path"
	"path/filepath"
	"strings"

	"github.com/container-storage-interface/spec/lib/go/csi"
	addons "github.com/csi-addons/spec/lib/go/identity"
	"google.golang.org/grpc"
	"google.golang.org/grpc/status"

	"github.com/csi-addons/node-healer/pkg/api/healerpb"
)

// servePlugin serves CSI, CSI-Addons, and kubelet's questions about the driver, until it
// is killed.
func servePlugin(d Driver) error {
	n := newNode(d)
	failed := make(chan error)
	serve := func(socket string, wrap func(net.Listener) net.Listener, register func(*grpc.Server)) error {
		l, err := listen(socket)
		if err != nil {
			return err
		}
		server := grpc.NewServer(grpc.UnaryInterceptor(d.answer))
		register(server)
		go func() { failed <- server.Serve(wrap(l)) }()
		return nil
	}
	misbehaving := func(l net.Listener) net.Listener { return misbehaving{l, d} }
	var err error
	if !d.mode().NoAddons {
		err = serve(d.AddonsSocket(), misbehaving, func(s *grpc.Server) {
			addons.RegisterIdentityServer(s, addonsIdentity{driver: d})
			healerpb.RegisterHealerNodeServer(s, healer{driver: d})
		})
	}
	err = errors.Join(
		err,
		serve(d.Socket(), misbehaving, func(s *grpc.Server) {
			csi.RegisterIdentityServer(s, identity{driver: d})
			csi.RegisterNodeServer(s, n)
			csi.RegisterControllerServer(s, controller{driver: d})
		}),
		// The last: kubelet calls the driver as soon as it sees this one.
		serve(d.Registry(), func(l net.Listener) net.Listener { return l }, func(s *grpc.Server) { register(s, d) }),
	)
	if err != nil {
		return err
	}
	return <-failed
}

// listen makes a socket, and its directory, where an earlier process may have left one. It
// is bound by its name alone: a path of more than 107 bytes is none for bind(2).
func listen(path string) (net.Listener, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o750); err != nil {
		return nil, err
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	if err := os.Chdir(filepath.Dir(path)); err != nil {
		return nil, err
	}
	return net.Listen("unix", filepath.Base(path))
}

// answer gives the answer that the mode has for a method, or has it do what it does.
func (d Driver) answer(ctx context.Context, req any, info *grpc.UnaryServerInfo, do grpc.UnaryHandler) (any, error) {
	a, set := d.mode().Answers[path.Base(info.FullMethod)]
	var resp any
	var err error
	if !set || a.Late {
		resp, err = do(ctx, req)
	}
	if a.Hangs || a.Late {
		<-ctx.Done()
		return nil, status.FromContextError(ctx.Err()).Err()
	}
	if set {
		return nil, status.Error(a.Code, a.Text+strings.Repeat("x", a.Huge))
	}
	return resp, err
}
