package kernels

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"
)

const (
	// bootTimeout and lineTimeout bound the wait for the next line of a machine:
	// emulated, and beside another one, it is slow.
	bootTimeout = 10 * time.Minute
	lineTimeout = 5 * time.Minute
	// diskSize is what the tests may fill. The file is sparse.
	diskSize = 8 << 30
)

// machine is a virtual machine with one kernel.
type machine struct {
	kernel string
	images images
	// job is the image with the tests; see makeJob.
	job string
	// name begins the names of its files.
	name string
	// only is the one test to run, instead of the job's.
	only string
}

// disk is its own disk, with an ext4.
func (m *machine) disk() string { return m.name + ".disk" }

// console is the file with what its kernel prints.
func (m *machine) console() string { return m.name + ".console" }

// format formats the disk.
func (m *machine) format() error {
	if err := os.RemoveAll(m.disk()); err != nil {
		return err
	}
	if err := os.WriteFile(m.disk(), nil, 0o600); err != nil {
		return err
	}
	if err := os.Truncate(m.disk(), diskSize); err != nil {
		return err
	}
	_, err := run("", "mkfs.ext4", "-q", m.disk())
	return err
}

// run boots the machine, gives each line that its tests print, and returns when it
// has ended: without an error only if the tests said how they ended. Their exit
// status is code.
func (m *machine) run(ctx context.Context, line func(string)) (code int, err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	cmd := m.command(ctx)
	out, err := cmd.StdoutPipe()
	if err != nil {
		return 0, err
	}
	var said strings.Builder
	cmd.Stderr = &said
	if err := cmd.Start(); err != nil {
		return 0, err
	}
	watch := time.AfterFunc(bootTimeout, func() {
		cancel(errors.New("the machine hangs"))
	})
	defer watch.Stop()
	code = -1
	readErr := eachLine(out, func(text string) {
		watch.Reset(lineTimeout)
		if _, err := fmt.Sscanf(text, "exit status %d", &code); err != nil {
			line(text)
		}
	})
	err = errors.Join(readErr, cmd.Wait())
	switch {
	case ctx.Err() != nil:
		err = context.Cause(ctx)
	case err == nil && code < 0:
		err = errors.New("the machine ended before the tests did")
	}
	if err != nil {
		err = fmt.Errorf("kernel %s: %w\n%s%s", m.kernel, err, said.String(), tail(m.console()))
	}
	return code, err
}

// command returns QEMU: a panic ends it, and nothing of it reaches a network.
// An old processor, no mitigations and no random addresses, because they cost most
// where each instruction is translated. No check of the timer, because a kernel that gets no
// processor in those 10 ms finds it broken, and panics.
func (m *machine) command(ctx context.Context) *exec.Cmd {
	disk := func(file, options string) string { return "if=virtio,format=raw,file=" + file + options }
	cmd := exec.CommandContext(ctx, "qemu-system-x86_64",
		// One processor: emulated ones spend half of their time on signals to each other,
		// and now and then run code that the kernel is patching (an oops at an int3).
		"-accel", "tcg", "-cpu", "Nehalem", "-smp", "1", "-m", "2048",
		"-nodefaults", "-no-user-config", "-display", "none", "-nic", "none", "-no-reboot",
		"-kernel", m.images.kernel(m.kernel), "-initrd", m.images.initramfs(m.kernel),
		"-append", "console=ttyS0 panic=-1 mitigations=off init_on_alloc=0 norandmaps no_timer_check NODE_HEALER_TEST_VM="+m.kernel+m.parameters(),
		"-drive", disk(m.images.root(), ",readonly=on"),
		"-drive", disk(m.job, ",readonly=on"),
		"-drive", disk(m.disk(), ",cache=unsafe"), // it outlives no crash of this machine
		"-serial", "file:"+m.console(),
		"-chardev", "file,id=out,path=/dev/stdout", "-device", "virtio-serial", "-device", "virtserialport,chardev=out",
	)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	return cmd
}

// parameters are the kernel's, which hands those that it does not know to process 1
// as its environment.
func (m *machine) parameters() string {
	if m.only == "" {
		return ""
	}
	return " NODE_HEALER_TEST_ONLY=" + m.only + " NODE_HEALER_TEST_KEPT=/disk/kept"
}

// eachLine returns each line that is read, however long.
func eachLine(r io.Reader, line func(string)) error {
	in := bufio.NewReader(r)
	for {
		text, err := in.ReadString('\n')
		if text != "" {
			line(strings.TrimRight(text, "\r\n"))
		}
		if err != nil {
			if errors.Is(err, io.EOF) || errors.Is(err, os.ErrClosed) {
				return nil
			}
			return err
		}
	}
}

// tail returns the end of a file.
func tail(path string) string {
	const most = 8 << 10
	raw, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	return string(raw[max(0, len(raw)-most):])
}
