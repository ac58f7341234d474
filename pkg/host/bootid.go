package host

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

// SinceBoot gives the time since this boot began, as the start times of processes
// are counted: nobody can set it.
func SinceBoot() time.Duration {
	var up unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_BOOTTIME, &up) // fails for a clock that is unknown only
	return time.Duration(up.Nano())
}

// BootTime tells when this boot began, by the clock of now.
func BootTime() time.Time { return time.Now().Add(-SinceBoot()) }
