package host

import (
	"fmt"
	"os"
	"strings"
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
