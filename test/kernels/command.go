package kernels

import (
	"fmt"
	"os/exec"
)

// run runs a program in a directory and returns what it prints.
func run(dir, name string, args ...string) (string, error) {
	cmd := exec.Command(name, args...)
	cmd.Dir = dir
	out, err := cmd.CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("%s %v: %w\n%s", name, args, err, out)
	}
	return string(out), nil
}

// shell runs a script of sh with positional parameters.
func shell(script string, args ...string) error {
	_, err := run("", "sh", append([]string{"-euc", script, "sh"}, args...)...)
	return err
}
