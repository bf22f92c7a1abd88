// Package monitoring says what to watch in an installation: rules of Prometheus (recording rules,
// objectives and alerts, each alert with what to do) and dashboards of Grafana. It is the one
// source of the files below monitoring/prometheus and monitoring/grafana and of the table of alerts
// in docs/operations.md.
//
// Objectives are watched as the SRE workbook proposes (Beyer et al., "The Site Reliability
// Workbook", chapter 5, multiwindow and multi-burn-rate alerts): an alert fires while the error
// budget burns too fast over a long window and over a short one, so that it comes soon and ends
// soon.
package monitoring

//go:generate go test -run TestTheFilesAreCurrent . -args -write
