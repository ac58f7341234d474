package harness

import (
	"encoding/json"
	"fmt"
	"io"
	"log"
	"os"

	"github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"
)

// fuseDaemonEnv has the configuration of a FUSEDisk's daemon, in JSON, and makes
// a process one.
const fuseDaemonEnv = "NODE_HEALER_TEST_FUSEDISK"

// fuseDaemonFD is the descriptor of the mount that a daemon is started with.
const fuseDaemonFD = 3

// fuseDaemonConfig is what a daemon is told.
type fuseDaemonConfig struct {
	FUSEConfig
	Backing string
}

// fuseDaemonMain is the daemon of a FUSEDisk. In a process that was not started
// as one it returns at once, otherwise never.
func fuseDaemonMain() {
	raw, ok := os.LookupEnv(fuseDaemonEnv)
	if !ok {
		return
	}
	if err := serveFUSEDisk(raw); err != nil {
		fmt.Fprintln(os.Stderr, "the daemon of a FUSE disk:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

func serveFUSEDisk(config string) error {
	var c fuseDaemonConfig
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
	server, err := fuse.NewServer(fs.NewNodeFS(root, options), fmt.Sprintf("/dev/fd/%d", fuseDaemonFD), &options.MountOptions)
	if err != nil {
		return err
	}
	server.Serve()
	return nil
}
