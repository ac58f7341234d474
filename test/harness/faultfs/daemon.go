package faultfs

import (
	"encoding/json"
	"fmt"
	"io"
	"log"
	"maps"
	"os"
	"sync"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"
)

// configEnv has the Config of a daemon, in JSON, and makes a process one.
const configEnv = "NODE_HEALER_TEST_FAULTFS"

// The descriptors that a daemon is started with.
const (
	fuseFD    = 3
	controlFD = 4
)

// Program is the program of the daemon: one that calls Main.
var Program = "/proc/self/exe"

// Main is the daemon. A TestMain calls it first: in a process that was not
// started as a daemon it returns at once, otherwise never.
func Main() {
	raw, ok := os.LookupEnv(configEnv)
	if !ok {
		return
	}
	if err := serve(raw); err != nil {
		fmt.Fprintln(os.Stderr, "faultfs:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

func serve(config string) error {
	var c Config
	if err := json.Unmarshal([]byte(config), &c); err != nil {
		return err
	}
	d := &daemon{faults: faults{}, seen: counts{}, changed: make(chan struct{})}
	fs, err := newTree(d, c)
	if err != nil {
		return err
	}
	server, err := fuse.NewServer(fs, fmt.Sprintf("/dev/fd/%d", fuseFD), &fuse.MountOptions{
		// That a connection was aborted is what tests do, and no news.
		Logger:             log.New(io.Discard, "", 0),
		DisableReadDirPlus: true,
	})
	if err != nil {
		return err
	}
	go d.takeOrders(os.NewFile(controlFD, "control"))
	server.Serve()
	return nil
}

// daemon is what the requests meet.
type daemon struct {
	mu     sync.Mutex
	faults faults
	seen   counts
	// changed is closed, and replaced, with every order.
	changed chan struct{}
}

// takeOrders obeys the test, and ends the process with it.
func (d *daemon) takeOrders(control *os.File) {
	orders, answers := json.NewDecoder(control), json.NewEncoder(control)
	for {
		var o order
		if err := orders.Decode(&o); err != nil {
			os.Exit(0)
		}
		if err := answers.Encode(d.obey(o)); err != nil {
			os.Exit(0)
		}
	}
}

func (d *daemon) obey(o order) counts {
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(o.Kinds) > 0 {
		d.faults.obey(o)
		close(d.changed)
		d.changed = make(chan struct{})
	}
	return maps.Clone(d.seen)
}

// meet has a request meet the fault of its kind, which it leaves when it is to be
// answered: with what status, and whether what it brings is to be dropped.
func (d *daemon) meet(k Kind) (status fuse.Status, drop bool) {
	d.mu.Lock()
	d.seen[k]++
	d.seen[All]++
	d.mu.Unlock()
	start := time.Now()
	for {
		d.mu.Lock()
		f, changed := d.faults.of(k), d.changed
		d.mu.Unlock()
		left := f.Delay - time.Since(start)
		switch {
		case f.Hang:
			<-changed
		case f.Delay > 0 && left > 0:
			select {
			case <-changed:
			case <-time.After(left):
			}
		default:
			return fuse.Status(f.Errno), f.Drop
		}
	}
}
