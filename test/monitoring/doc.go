// Package monitoring holds no code: its tests have Prometheus judge deploy/monitoring.
//
//   - rules_test.go loads the alert rules, and evaluates them on samples (scenes_test.go);
//   - dashboard_test.go parses the dashboard's expressions;
//   - both compare the metrics and labels that they name with those of internal/metrics
//     (metrics_test.go);
//   - scrape_test.go starts a real Prometheus, which scrapes these metrics once.
//
// It is a module of its own, so that Prometheus's requirements do not become ours.
// `make monitoring` runs it.
package monitoring
