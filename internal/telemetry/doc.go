// Package telemetry is what people see of a program: its log, its metrics, and
// the HTTP side for operators.
//
//   - /healthz says that the process is alive, and nothing else: who restarts on
//     it must not restart for a database that is away.
//   - /readyz says whether the program can do its work now: 200 if it can, 503 if
//     not. The body lists every part that is not well. A part may be degraded: one
//     of 16 databases is away, and the rest goes on; that is listed, and still 200.
//   - /metrics is for Prometheus. All names begin with perceptor_.
//   - /debug/pprof/ only if the configuration says so.
package telemetry
