// Package chart holds no code: its tests have Helm, kustomize and an API judge how deploy/
// is installed.
//
//   - render_test.go compares what the chart renders with what kustomize builds;
//   - values_test.go changes values, and sees what the schema refuses;
//   - install_test.go installs, upgrades and uninstalls it in a real API;
//   - openshift_test.go compares the overlay with what the pods ask for;
//   - operations_test.go runs the commands of docs/operations.md.
//
// It is a module of its own, so that Helm's and kustomize's requirements do not become
// ours. `make chart` runs it.
package chart
