package node

import (
	"fmt"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// BootID identifies this boot: device numbers and mount ids mean nothing in
// another one.
func BootID() (string, error) {
	raw, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "", fmt.Errorf("boot id: %w", err)
	}
	return strings.TrimSpace(string(raw)), nil
}

// SinceBoot returns the time since this boot began, as the start times of processes
// are counted: that clock cannot be set.
func SinceBoot() time.Duration {
	var up unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_BOOTTIME, &up) // fails for an unknown clock only
	return time.Duration(up.Nano())
}

// BootTime returns when this boot began, by the present wall clock.
func BootTime() time.Time { return time.Now().Add(-SinceBoot()) }
