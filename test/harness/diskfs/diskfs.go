// Package diskfs is the daemon of the tests' FUSE disks: it serves a directory.
package diskfs

import (
	"encoding/json"
	"fmt"
	"io"
	"log"
	"os"
	"time"

	"github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"
)

// Env has the Config of a daemon, in JSON, and makes a process one.
const Env = "NODE_HEALER_TEST_FUSEDISK"

// fuseFD is the descriptor of the mount that a daemon is started with.
const fuseFD = 3

// Config is what a daemon is told.
type Config struct {
	// Backing is the directory that it serves.
	Backing string
	// Valid is how long the kernel may believe names and attributes.
	Valid time.Duration
}

// Main is the daemon. In a process that was not started as one it returns at once,
// otherwise never.
func Main() {
	raw, ok := os.LookupEnv(Env)
	if !ok {
		return
	}
	if err := serve(raw); err != nil {
		fmt.Fprintln(os.Stderr, "the daemon of a FUSE disk:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

func serve(config string) error {
	var c Config
	if err := json.Unmarshal([]byte(config), &c); err != nil {
		return err
	}
	root, err := fs.NewLoopbackRoot(c.Backing)
	if err != nil {
		return err
	}
	options := &fs.Options{
		EntryTimeout: &c.Valid, AttrTimeout: &c.Valid,
		MountOptions: fuse.MountOptions{
			// That a connection was aborted is what tests do, and no news.
			Logger: log.New(io.Discard, "", 0),
		},
	}
	server, err := fuse.NewServer(fs.NewNodeFS(root, options), fmt.Sprintf("/dev/fd/%d", fuseFD), &options.MountOptions)
	if err != nil {
		return err
	}
	server.Serve()
	return nil
}
