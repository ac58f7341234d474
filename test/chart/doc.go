// Package chart holds no code: its tests have Helm and kustomize judge deploy/chart.
//
//   - render_test.go compares what the chart renders with what kustomize builds;
//   - values_test.go changes values, and sees what the schema refuses;
//   - install_test.go installs, upgrades and uninstalls it in a real API.
//
// It is a module of its own, so that Helm's and kustomize's requirements do not become
// ours. `make chart` runs it.
package chart
