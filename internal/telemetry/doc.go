// Package telemetry holds the log, the metrics and the HTTP server for operators.
//
//   - /healthz answers while the process is alive. It depends on nothing else, so
//     that a supervisor does not restart a process because a database is down.
//   - /readyz answers 200 if the program can do its work and 503 if not. Its body
//     lists every part that does not work. A part may be degraded: if one of 16
//     databases is down, the program serves the others and answers 200.
//   - /metrics serves metrics for Prometheus. docs/metrics.md lists them.
//   - /debug/pprof/ serves profiles if the configuration says so.
package telemetry
