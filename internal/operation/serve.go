package operation

import (
	"bufio"
	"encoding/gob"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// The file descriptors that a worker starts with, beside the standard three.
const (
	SocketFD    = 3
	NamespaceFD = 4
)

// Serve is the whole life of a worker process: it answers requests one after
// the other until the server closes the socket, and returns nil then.
//
// All operations run on one locked thread, so that they see the mount namespace that it
// entered at the start.
func Serve(ops ...Servable) error {
	runtime.LockOSThread()
	byName := make(map[string]Servable, len(ops))
	for _, op := range ops {
		if _, twice := byName[op.Name()]; twice {
			return fmt.Errorf("operation %q is served twice", op.Name())
		}
		byName[op.Name()] = op
	}
	// Programs that an operation starts inherit nothing of ours.
	unix.CloseOnExec(SocketFD)
	// A raw file, not the poller: the thread that reads is the thread that works.
	socket := os.NewFile(SocketFD, "server")
	out := bufio.NewWriter(socket)
	dec, enc := gob.NewDecoder(bufio.NewReader(socket)), gob.NewEncoder(out)

	var hello Greeting
	if err := dec.Decode(&hello); err != nil {
		return fmt.Errorf("not started by node-healer: %w", err)
	}
	var err error
	if hello.Namespace {
		host := os.NewFile(NamespaceFD, "of the host")
		err = errors.Join(closeInherited(NamespaceFD+1), EnterMounts(host), host.Close())
	} else {
		err = closeInherited(SocketFD + 1)
	}
	if encErr := enc.Encode(Head{Err: toWire(err)}); encErr != nil {
		return encErr
	}
	if flushErr := out.Flush(); flushErr != nil || err != nil {
		return errors.Join(err, flushErr)
	}
	for {
		var h Head
		if err := dec.Decode(&h); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		op, known := byName[h.Op]
		if !known {
			return fmt.Errorf("asked for an unknown operation %q", h.Op)
		}
		if err := op.serve(dec, enc); err != nil {
			return err
		}
		if err := out.Flush(); err != nil {
			return err
		}
	}
}

// EnterMounts brings the calling thread, which has to be locked to its goroutine, into a
// mount namespace. It gives the thread a root and a working directory of its own,
// without which the kernel does not let it (setns(2)).
func EnterMounts(namespace *os.File) error {
	if err := unix.Unshare(unix.CLONE_FS); err != nil {
		return fmt.Errorf("unshare(CLONE_FS): %w", err)
	}
	if err := unix.Setns(int(namespace.Fd()), unix.CLONE_NEWNS); err != nil {
		return fmt.Errorf("enter the mount namespace %s: %w", namespace.Name(), err)
	}
	return nil
}
