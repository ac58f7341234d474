package e2e

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// hierarchies are the roots of all cgroup hierarchies: one, or with version 1
// one for each controller.
func hierarchies() ([]string, error) {
	const root = "/sys/fs/cgroup"
	var of unix.Statfs_t
	if err := unix.Statfs(root, &of); err != nil {
		return nil, err
	}
	if of.Type == unix.CGROUP2_SUPER_MAGIC {
		return []string{root}, nil
	}
	entries, err := os.ReadDir(root)
	if err != nil {
		return nil, err
	}
	var dirs []string
	for _, e := range entries {
		if e.IsDir() { // a link is another name of one of them
			dirs = append(dirs, filepath.Join(root, e.Name()))
		}
	}
	return dirs, nil
}

// makeCgroup makes a cgroup in every hierarchy, for kubelet to put its pods in.
func makeCgroup(path string) (string, error) {
	dirs, err := hierarchies()
	for _, dir := range dirs {
		err = errors.Join(err, handDown(dir), os.Mkdir(dir+path, 0o755))
	}
	return path, err
}

// handDown lets cgroups below have all controllers that a hierarchy of version 2
// has, as container runtimes do. With version 1 they have them anyway.
func handDown(root string) error {
	controllers, err := os.ReadFile(filepath.Join(root, "cgroup.controllers"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	for _, controller := range strings.Fields(string(controllers)) {
		enable := os.WriteFile(filepath.Join(root, "cgroup.subtree_control"), []byte("+"+controller), 0)
		err = errors.Join(err, enable)
	}
	return err
}

// removeCgroup removes a cgroup with all that are in it. Their processes have
// been killed, and need a moment to be gone.
func removeCgroup(path string) {
	dirs, err := hierarchies()
	for _, dir := range dirs {
		for range 100 {
			if err = removeTree(dir + path); err == nil {
				break
			}
			time.Sleep(100 * time.Millisecond)
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "remove the node's cgroup:", err)
	}
}

// removeTree removes a directory of cgroups, whose files are no hindrance.
func removeTree(root string) error {
	var dirs []string
	err := filepath.WalkDir(root, func(path string, e fs.DirEntry, err error) error {
		if err == nil && e.IsDir() {
			dirs = append(dirs, path)
		}
		return err
	})
	if errors.Is(err, fs.ErrNotExist) && len(dirs) == 0 {
		return nil
	}
	for _, dir := range slices.Backward(dirs) {
		if err := unix.Rmdir(dir); err != nil {
			return fmt.Errorf("remove %s: %w", dir, err)
		}
	}
	return err
}
