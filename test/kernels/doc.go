// Package kernels runs the tests of test/integration on the kernels that people
// have: each is booted in a virtual machine (QEMU, without KVM), with the same
// test code and the same binaries as on this machine.
//
//   - archive.go fetches Debian's packages: kernels, and the programs that the
//     tests start. Nothing is installed here.
//   - root.go makes the machine's root filesystem of them, once.
//   - job.go builds the binaries that one run is about.
//   - machine.go boots a kernel and reads what the tests print.
//   - results.go says which test did what.
//   - features.go lists what has to be shown on every kernel.
//
// It needs root, and what `make deps` installs. `make kernels` runs it.
package kernels
