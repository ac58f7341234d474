// Command proto compiles one .proto file and runs protoc plugins on it.
//
// It stands in for protoc, which the Go module proxy cannot serve: with it,
// every part of `make generate` is pinned in a go.mod. Imports are given as
// name=file, because a name in the protobuf registry ("csi.proto") need not be
// where the file lies.
//
//	proto -out DIR -param P -plugin PATH ... -import NAME=FILE ... NAME=FILE
package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/bufbuild/protocompile"
	"github.com/bufbuild/protocompile/protoutil"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/pluginpb"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "proto:", err)
		os.Exit(1)
	}
}

func run() error {
	files := map[string]string{}
	addFile := func(s string) error {
		name, file, ok := strings.Cut(s, "=")
		if !ok {
			return fmt.Errorf("want NAME=FILE, have %q", s)
		}
		files[name] = file
		return nil
	}
	var plugins []string
	out := flag.String("out", ".", "directory to write to")
	param := flag.String("param", "", "parameter for every plugin")
	flag.Func("plugin", "path of a protoc plugin (repeatable)", func(s string) error {
		plugins = append(plugins, s)
		return nil
	})
	flag.Func("import", "NAME=FILE of an import (repeatable)", addFile)
	flag.Parse()
	if flag.NArg() != 1 {
		return errors.New("want exactly one NAME=FILE to compile")
	}
	if err := addFile(flag.Arg(0)); err != nil {
		return err
	}
	target, _, _ := strings.Cut(flag.Arg(0), "=")

	req, err := compile(files, target, *param)
	if err != nil {
		return err
	}
	for _, plugin := range plugins {
		if err := generate(plugin, req, *out); err != nil {
			return fmt.Errorf("%s: %w", plugin, err)
		}
	}
	return nil
}

// compile makes the request that every plugin gets.
func compile(files map[string]string, target, param string) ([]byte, error) {
	c := protocompile.Compiler{
		Resolver: protocompile.WithStandardImports(&protocompile.SourceResolver{
			Accessor: func(name string) (io.ReadCloser, error) {
				file, ok := files[name]
				if !ok {
					return nil, fmt.Errorf("%s: %w", name, os.ErrNotExist)
				}
				return os.Open(file)
			},
		}),
		// Plugins copy the comments into the stubs.
		SourceInfoMode: protocompile.SourceInfoStandard,
	}
	linked, err := c.Compile(context.Background(), target)
	if err != nil {
		return nil, err
	}
	req := &pluginpb.CodeGeneratorRequest{
		FileToGenerate: []string{target},
		Parameter:      proto.String(param),
		ProtoFile:      closure(linked[0], map[string]bool{}),
	}
	return proto.MarshalOptions{Deterministic: true}.Marshal(req)
}

// closure lists a file and all it imports, imports first as plugins demand.
func closure(f protoreflect.FileDescriptor, seen map[string]bool) []*descriptorpb.FileDescriptorProto {
	if seen[f.Path()] {
		return nil
	}
	seen[f.Path()] = true
	var list []*descriptorpb.FileDescriptorProto
	for i := range f.Imports().Len() {
		list = append(list, closure(f.Imports().Get(i).FileDescriptor, seen)...)
	}
	return append(list, protoutil.ProtoFromFileDescriptor(f))
}

// generate runs one plugin and writes what it answers.
func generate(plugin string, req []byte, out string) error {
	cmd := exec.Command(plugin)
	cmd.Stdin = bytes.NewReader(req)
	cmd.Stderr = os.Stderr
	answer, err := cmd.Output()
	if err != nil {
		return err
	}
	var resp pluginpb.CodeGeneratorResponse
	if err := proto.Unmarshal(answer, &resp); err != nil {
		return err
	}
	if resp.Error != nil {
		return errors.New(resp.GetError())
	}
	for _, f := range resp.File {
		path := filepath.Join(out, f.GetName())
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(path, []byte(f.GetContent()), 0o644); err != nil {
			return err
		}
	}
	return nil
}
