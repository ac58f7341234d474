package kernels

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// The release whose archive has both kernels. Its packages are fetched from
// Debian itself, whatever this machine runs, and checked by apt against the keys
// in Debian's keyring.
const (
	release = "bookworm"
	keyring = "/usr/share/keyrings/debian-archive-keyring.gpg"
)

// programs are the packages with what the tests start, and what they bring.
var programs = []string{
	// What init and the harness need.
	"bash", "busybox-static", "coreutils", "dash", "findutils", "grep", "kmod", "mount", "procps", "python3-minimal", "runc", "sed", "util-linux",
	// Filesystems, and the FUSE daemons that drivers start.
	"bindfs", "btrfs-progs", "e2fsprogs", "fuse3", "gocryptfs", "mergerfs", "openssh-sftp-server", "rclone", "squashfs-tools", "squashfuse", "sshfs", "xfsprogs",
	// Block devices.
	"cryptsetup-bin", "dmsetup", "multipath-tools", "nbd-client", "nbd-server",
	// NFS over the loopback interface.
	"iproute2", "nfs-common", "nfs-kernel-server",
}

// archive is apt with directories of its own and no package installed: so it
// finds everything that a package needs, and tells this machine's nothing.
type archive struct{ dir string }

// openArchive reads the lists of the release.
func openArchive(dir string) (archive, error) {
	a := archive{dir}
	for _, sub := range []string{"lists/partial", "cache/archives/partial"} {
		if err := os.MkdirAll(filepath.Join(dir, sub), 0o755); err != nil {
			return a, err
		}
	}
	var sources strings.Builder
	for _, suite := range []string{"debian " + release, "debian-security " + release + "-security"} {
		fmt.Fprintf(&sources, "deb [signed-by=%s] http://deb.debian.org/%s main\n", keyring, suite)
	}
	for name, content := range map[string]string{"sources.list": sources.String(), "status": ""} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			return a, err
		}
	}
	_, err := a.apt("get", "update", "-qq")
	return a, err
}

// apt runs apt-get or apt-cache.
func (a archive) apt(program string, args ...string) (string, error) {
	options := []string{
		"-oAPT::Architecture=amd64", "-oAPT::Architectures=amd64", "-oAPT::Install-Recommends=false",
		"-oAPT::Sandbox::User=root", // apt's own user cannot write here
		"-oAcquire::Languages=none", "-oAcquire::IndexTargets::deb::DEP-11::DefaultEnabled=false",
		"-oDir::State=" + a.dir, "-oDir::State::Lists=" + a.dir + "/lists", "-oDir::State::status=" + a.dir + "/status",
		"-oDir::Cache=" + a.dir + "/cache", "-oDir::Etc::SourceList=" + a.dir + "/sources.list",
		"-oDir::Etc::SourceParts=/dev/null", "-oDir::Etc::Preferences=/dev/null", "-oDir::Etc::PreferencesParts=/dev/null",
	}
	return run(a.dir, "apt-"+program, append(options, args...)...)
}

// newest names the newest package of a kernel's branch.
func (a archive) newest(branch string) (string, error) {
	out, err := a.apt("cache", "search", "--names-only", "^linux-image-"+strings.ReplaceAll(branch, ".", "[.]")+"[.].*-cloud-amd64$")
	if err != nil {
		return "", err
	}
	best, bestVersion := "", ""
	for line := range strings.Lines(out) {
		name, _, _ := strings.Cut(line, " ")
		shown, err := a.apt("cache", "show", "--no-all-versions", name)
		if err != nil {
			return "", err
		}
		_, version, _ := strings.Cut(shown, "\nVersion: ")
		version, _, _ = strings.Cut(version, "\n")
		if _, err := run("", "dpkg", "--compare-versions", version, "gt", bestVersion); err == nil {
			best, bestVersion = name, version
		}
	}
	if best == "" {
		return "", fmt.Errorf("the archive of %s has no kernel %s", release, branch)
	}
	return best, nil
}

// fetch downloads packages with all that they need, and returns the files. The
// kernels come without: what they depend on makes images for a boot loader.
func (a archive) fetch(kernels []string) (programFiles []string, kernelFiles map[string]string, err error) {
	if _, err := a.apt("get", append([]string{"install", "--yes", "-qq", "--download-only"}, programs...)...); err != nil {
		return nil, nil, err
	}
	programFiles, err = filepath.Glob(a.dir + "/cache/archives/*.deb")
	if err != nil {
		return nil, nil, err
	}
	kernelFiles = map[string]string{}
	for _, kernel := range kernels {
		name, err := a.newest(kernel)
		if err != nil {
			return nil, nil, err
		}
		if kernelFiles[kernel], err = a.download(name); err != nil {
			return nil, nil, err
		}
	}
	return programFiles, kernelFiles, nil
}

// download downloads one package. apt-get puts it where it is run.
func (a archive) download(name string) (string, error) {
	if _, err := a.apt("get", "download", "-qq", name); err != nil {
		return "", err
	}
	found, err := filepath.Glob(filepath.Join(a.dir, name+"_*.deb"))
	if err != nil || len(found) != 1 {
		return "", fmt.Errorf("%d files of %s: %w", len(found), name, err)
	}
	return found[0], nil
}
