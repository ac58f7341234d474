package kernels

import (
	"crypto/sha256"
	_ "embed"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

//go:embed init.sh
var initScript string

// images are the parts of the machines that do not depend on this module.
type images struct{ dir string }

// root is the filesystem that the kernels have in common.
func (i images) root() string { return filepath.Join(i.dir, "root.squashfs") }

// kernel is a kernel's image.
func (i images) kernel(name string) string { return filepath.Join(i.dir, "vmlinuz-"+name) }

// initramfs is what a kernel starts with.
func (i images) initramfs(name string) string { return filepath.Join(i.dir, "initramfs-"+name) }

// makeImages makes them in a directory, unless they are there. They are made
// again when what they are made of is another list; `make clean` removes them, for
// the newest packages.
func makeImages(dir string, kernels []string) (images, error) {
	i := images{dir}
	stamp, want := filepath.Join(dir, "made-of"), ingredients(kernels)
	if made, _ := os.ReadFile(stamp); string(made) == want {
		return i, nil
	}
	if err := os.RemoveAll(dir); err != nil {
		return i, err
	}
	if err := i.make(kernels); err != nil {
		return i, err
	}
	return i, os.WriteFile(stamp, []byte(want), 0o600)
}

func ingredients(kernels []string) string {
	all := fmt.Sprintf("%q %q %q %q %q %q", release, kernels, programs, early, initScript, etc)
	return fmt.Sprintf("%x\n", sha256.Sum256([]byte(all)))
}

func (i images) make(kernels []string) error {
	a, err := openArchive(filepath.Join(i.dir, "apt"))
	if err != nil {
		return err
	}
	programFiles, kernelFiles, err := a.fetch(kernels)
	if err != nil {
		return err
	}
	root := filepath.Join(i.dir, "root")
	if err := newRoot(root); err != nil {
		return err
	}
	for _, file := range programFiles {
		if err := unpack(file, root); err != nil {
			return err
		}
	}
	for _, kernel := range kernels {
		if err := i.makeKernel(kernel, kernelFiles[kernel], root); err != nil {
			return err
		}
	}
	// lz4 is what the machines unpack fastest.
	if _, err := run("", "mksquashfs", root, i.root(), "-comp", "lz4", "-noappend", "-quiet", "-no-progress"); err != nil {
		return err
	}
	for _, used := range []string{root, a.dir} {
		if err := os.RemoveAll(used); err != nil {
			return err
		}
	}
	return nil
}

// etc are the files that packages make when they are installed, which does not
// happen here: among them the users that programs ask for by name.
var etc = map[string]string{
	"passwd": `root:x:0:0:root:/root:/bin/bash
nbd:x:100:65534::/:/usr/sbin/nologin
_rpc:x:101:65534::/run/rpcbind:/usr/sbin/nologin
statd:x:102:65534::/var/lib/nfs:/usr/sbin/nologin
nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin
`,
	"group":         "root:x:0:\nnbd:x:100:\nnogroup:x:65534:\n",
	"hosts":         "127.0.0.1 localhost\n",
	"hostname":      "node-1\n",
	"nsswitch.conf": "passwd: files\ngroup: files\nhosts: files\n",
	"exports":       "",
}

// newRoot makes an empty root filesystem, laid out as Debian's.
func newRoot(root string) error {
	for _, dir := range []string{"usr/bin", "usr/sbin", "usr/lib", "usr/lib64", "etc", "root", "job", "disk", "dev", "proc", "sys", "run", "tmp", "var/lib"} {
		if err := os.MkdirAll(filepath.Join(root, dir), 0o755); err != nil {
			return err
		}
	}
	for _, dir := range []string{"bin", "sbin", "lib", "lib64"} {
		if err := os.Symlink("usr/"+dir, filepath.Join(root, dir)); err != nil {
			return err
		}
	}
	for name, content := range etc {
		if err := os.WriteFile(filepath.Join(root, "etc", name), []byte(content), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// unpack unpacks a package. tar keeps the links for /bin and the like, through
// which some packages have their files; dpkg-deb itself would not.
func unpack(file, root string) error {
	return shell(`dpkg-deb --fsys-tarfile "$1" | tar -x -C "$2" --keep-directory-symlink --exclude ./usr/share/doc --exclude ./usr/share/man --exclude ./usr/share/locale`, file, root)
}

// early are the modules without which there is no root filesystem, and no port to
// print to. Some kernels have some of them built in.
var early = []string{"virtio_pci", "virtio_blk", "virtio_console", "squashfs", "overlay"}

// makeKernel takes a kernel's package apart: its modules go to the root
// filesystem, and the early ones into its initramfs.
func (i images) makeKernel(name, file, root string) error {
	tree := filepath.Join(i.dir, "kernel-"+name)
	if err := os.MkdirAll(tree, 0o755); err != nil {
		return err
	}
	if err := shell(`dpkg-deb -x "$1" "$2" && mv "$2"/boot/vmlinuz-* "$3"`, file, tree, i.kernel(name)); err != nil {
		return err
	}
	found, err := filepath.Glob(tree + "/lib/modules/*")
	if err != nil || len(found) != 1 {
		return fmt.Errorf("%d kernels in %s: %w", len(found), file, err)
	}
	version := filepath.Base(found[0])
	modules := filepath.Join(root, "usr/lib/modules", version)
	// depmod is not on every machine, but in the root filesystem.
	if err := shell(`mkdir -p "$(dirname "$2")" && mv "$1" "$2" && rm -r "$4" && chroot "$3" depmod "$5"`, found[0], modules, root, tree, version); err != nil {
		return err
	}
	return i.makeInitramfs(name, modules, root)
}

func (i images) makeInitramfs(name, modules, root string) error {
	tree := filepath.Join(i.dir, "initramfs-tree-"+name)
	if err := os.MkdirAll(filepath.Join(tree, "modules"), 0o755); err != nil {
		return err
	}
	order, err := loadOrder(modules)
	if err != nil {
		return err
	}
	var list strings.Builder
	for _, module := range order {
		// Busybox loads no compressed ones.
		base := strings.TrimSuffix(filepath.Base(module), ".xz")
		fmt.Fprintln(&list, base)
		if err := shell(`case "$1" in *.xz) xz -dc "$1" ;; *) cat "$1" ;; esac >"$2"`, filepath.Join(modules, module), filepath.Join(tree, "modules", base)); err != nil {
			return err
		}
	}
	for name, content := range map[string]string{"init": initScript, "modules/order": list.String()} {
		if err := os.WriteFile(filepath.Join(tree, name), []byte(content), 0o755); err != nil {
			return err
		}
	}
	return shell(`cd "$1"
		mkdir bin proc sys dev
		cp "$2/bin/busybox" bin/
		find . | "$2/bin/busybox" cpio -o -H newc 2>/dev/null | gzip -1 >"$3"
		rm -r "$1"`, tree, root, i.initramfs(name))
}

// loadOrder returns the files of the early modules, each after those that it needs.
func loadOrder(modules string) ([]string, error) {
	raw, err := os.ReadFile(filepath.Join(modules, "modules.dep"))
	if err != nil {
		return nil, err
	}
	files, needs := map[string]string{}, map[string][]string{}
	for line := range strings.Lines(string(raw)) {
		file, rest, _ := strings.Cut(strings.TrimSpace(line), ":")
		name, _, _ := strings.Cut(filepath.Base(file), ".ko")
		files[strings.ReplaceAll(name, "-", "_")] = file
		needs[file] = strings.Fields(rest)
	}
	var order []string
	listed := map[string]bool{}
	var add func(file string)
	add = func(file string) {
		if listed[file] {
			return
		}
		listed[file] = true
		for _, needed := range needs[file] {
			add(needed)
		}
		order = append(order, file)
	}
	for _, name := range early {
		if file, ok := files[name]; ok { // otherwise it is built in
			add(file)
		}
	}
	return order, nil
}
