package csidriver

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// Image is the file that is a volume's disk; where it exists, the volume is the ext4 or xfs
// on it, and not a directory that a daemon shows.
func (d Driver) Image(volume string) string { return filepath.Join(d.Volumes, volume, "disk.img") }

func (d Driver) onDisk(volume string) bool {
	_, err := os.Stat(d.Image(volume))
	return err == nil
}

// stageDisk checks the filesystem, as drivers do, and mounts it.
func (d Driver) stageDisk(m Mode, volume, at string) error {
	if is, err := mounted(at); err != nil || is {
		return err
	}
	image := d.Image(volume)
	if m.Formats {
		if err := formatBlank(image); err != nil {
			return err
		}
	}
	kind, err := exec.Command("blkid", "-p", "-o", "value", "-s", "TYPE", image).Output()
	if err != nil {
		return fmt.Errorf("blkid %s: %w", image, err)
	}
	if strings.TrimSpace(string(kind)) == "ext4" {
		out, err := exec.Command("e2fsck", "-p", image).CombinedOutput()
		if exit := (*exec.ExitError)(nil); err != nil && (!errors.As(err, &exit) || exit.ExitCode() > 1) { // 1: it has repaired
			return fmt.Errorf("e2fsck: %w: %s", err, out)
		}
	}
	if out, err := exec.Command("mount", "-o", "loop", image, at).CombinedOutput(); err != nil {
		return fmt.Errorf("mount: %w: %s", err, out)
	}
	return nil
}

// formatBlank makes an ext4 on a disk in which nothing is found.
func formatBlank(image string) error {
	err := exec.Command("blkid", "-p", image).Run()
	if exit := (*exec.ExitError)(nil); !errors.As(err, &exit) || exit.ExitCode() != 2 {
		return err
	}
	if out, err := exec.Command("mkfs.ext4", "-q", image).CombinedOutput(); err != nil {
		return fmt.Errorf("mkfs.ext4: %w: %s", err, out)
	}
	return nil
}

// publishDisk binds what is staged, once.
func publishDisk(staged, at string, readOnly bool) error {
	if is, err := mounted(at); err != nil || is {
		return err
	}
	if err := unix.Mount(staged, at, "", unix.MS_BIND, ""); err != nil || !readOnly {
		return err
	}
	return unix.Mount("", at, "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY, "")
}

// mounted asks no filesystem, which may have shut itself down.
func mounted(at string) (bool, error) {
	table, err := os.ReadFile("/proc/self/mountinfo")
	return strings.Contains(string(table), " "+at+" "), err
}
